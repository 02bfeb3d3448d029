"""The engine that ``initialize`` returns and a training loop calls."""

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from dsconfig import Plan
from dsengine.communication.exit_watch import reported
from dsengine.communication.peers import (
    agree_to_abort,
    in_phase,
    require_all_ranks,
    unregister,
)
from dsengine.communication.peers.message import cause_of
from dsengine.loop import direct_step
from dsengine.loop.accumulating import AccumulatingEngine
from dsengine.loop.deepspeed_attributes import attribute_of_model
from dsengine.loop.direct_backward import DirectBackward
from dsengine.loop.misuse import MisuseError
from dsengine.loop.offload_states import EVERYTHING, GRADIENTS, MODEL
from dsengine.loop.optimizer_compat import publish_state
from dsengine.loop.stepping import Outcome, Stepper
from dsengine.observation.printing import print_rank0
from dsengine.observation.reporter import Reporter
from dsengine.optimizers.loss_scale import LossScaler
from dsengine.optimizers.precision import Policy
from dsengine.optimizers.schedules import check_metrics
from dsengine.parallel.transformers_attention import release_attention
from dsengine.sharding import Sharding
from dsengine.topology import Topology
from dsengine.torch_private.groups import issued_collectives
from dsengine.torch_private.modules import parameter_table
from dsengine.torch_private.tensors import is_in_backward

if TYPE_CHECKING:
    from dsengine.loop.data import TrainingLoader

active_engines: "WeakSet[Engine]" = WeakSet()
"""Engines of this process that are not destroyed."""


class Engine(AccumulatingEngine):
    """A model with everything that trains it, as planned.

    The loop is ``loss = engine(batch)``, ``engine.backward(loss)``, ``engine.step()`` for each
    micro batch; ``step`` handles accumulation, clipping, overflow, the schedule and zeroing
    gradients. Attributes the engine does not have are looked up in the model.
    """

    def __init__(
        self,
        *,
        plan: Plan,
        topology: Topology,
        sharding: Sharding,
        policy: Policy,
        scaler: LossScaler,
        device: torch.device,
        optimizer: Optimizer | None,
        lr_scheduler: Any,
    ) -> None:
        super().__init__(plan, topology, sharding, scaler, device, optimizer, lr_scheduler)
        effective = plan.effective
        self._policy = policy
        self.collate_fn: Callable[[list[Any]], Any] | None = None
        """Default collate function of loaders."""
        self._stepper = None
        if optimizer is not None:
            self._stepper = Stepper(topology, sharding, self._binding, scaler, effective, policy)
            direct_step.install(self, optimizer)
        self._without_masters = policy.frozen_without_masters(sharding.module)
        self._step_applied = False
        self._global_grad_norm: float | None = None
        self._last_pass, self._in_pass = "", False
        """"forward" or "backward" while it runs and after it has failed, otherwise ""."""
        self._pass_error = ""
        """The message of the error that ended it."""
        self._issued_before: dict[str, int] = {}
        """By group, the collectives issued before the first forward since a backward, or before the
        last backward if there has been none."""
        self._has_forward = False
        """Whether forward has been called since the last backward."""
        self._backwards = 0
        """Backwards since the last boundary."""
        self._is_destroyed = False
        self._collects_garbage = effective.disable_python_gc
        if self._collects_garbage:
            gc.disable()
        self._direct = DirectBackward(self)
        self._reporter = Reporter(plan, self)
        self.tput_timer = self._reporter.throughput
        self._publish_optimizer_state(overflow=False)
        active_engines.add(self)

    # The loop

    @in_phase("forward")
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.require_states(MODEL, "forward()")
        if self._failed_pass:
            self._abort_pass(self._failed_pass)
        if self._effective.zero.stage == 3 and torch.is_grad_enabled():
            require_all_ranks()
        with self._reporter.phase("forward"), self._policy.autocast_context(self.device):
            self._reporter.record_inputs(*args, *kwargs.values())
            if self._policy.casts_inputs:
                args, kwargs = self._policy.cast((args, kwargs))
            with self._run_pass("forward"):
                outputs = self.sharding.forward(*args, **kwargs)
        if torch.is_grad_enabled():
            self._direct.watch(outputs)
        return outputs

    @in_phase("backward")
    def backward(
        self,
        loss: Tensor,
        retain_graph: bool = False,
        scale_wrt_gas: bool = True,
        **kwargs: Any,
    ) -> Tensor:
        """Compute gradients of ``loss``; return ``loss`` divided by the accumulation steps."""
        self.require_states(GRADIENTS, "backward()")
        if not isinstance(loss, Tensor):
            raise TypeError(f"backward() expects a loss tensor, not {type(loss).__name__}")
        if self._failed_pass == "forward":
            self._abort_pass("forward")
        if isinstance(loss, DTensor):  # of logits split along the vocabulary
            loss = loss.full_tensor()
        if scale_wrt_gas and self.accumulation.steps > 1:
            loss = loss / self.accumulation.steps
        self.prepare_backward(loss)
        inside = self._direct.in_engine_backward(frees_graph=not retain_graph)
        with inside, self._run_pass("backward"), self._reporter.phase("backward"):
            scale = self.loss_scaler.scale * self.loss_weight
            scaled = loss if scale == 1.0 else loss.float() * scale
            scaled.backward(retain_graph=retain_graph, **kwargs)
            self.sharding.after_backward()
        self._reporter.record_loss(loss)
        return loss

    @contextmanager
    def _run_pass(self, name: str) -> Iterator[None]:
        """Record the running pass until it completes.

        Nested passes, such as a recomputation or an engine call in a hook, belong to the outer one;
        checkpointing ends a recomputation with an exception once it has what it needs.
        """
        if self._in_pass or is_in_backward():
            yield
            return
        self._last_pass, self._in_pass = name, True
        if name == "forward" and not self._has_forward:
            self._issued_before = issued_collectives()
            self._has_forward = True
        try:
            yield
        except BaseException as error:
            self._pass_error = cause_of(error)
            raise
        finally:
            self._in_pass = False
        self._last_pass = ""

    @property
    def _failed_pass(self) -> str:
        """The pass that ended with an error, "" for none."""
        if self._in_pass or is_in_backward():
            return ""
        return "backward" if self._direct.has_begun else self._last_pass

    def _abort_pass(self, name: str) -> None:
        """Recover from a failed pass whose error the script has caught.

        After a failed backward the gradients of its window are incomplete: they are dropped and the
        window restarts. All ranks must abort the same pass, unless it has no collectives. If this
        fails itself (out of memory), the next forward tries again.

        Raises RankFailedError if other ranks do not abort it.
        """
        was_backward = name == "backward"
        if was_backward or self.sharding.has_forward_collectives:
            phase = f"{name}() of micro step {self.counters.micro_steps + 1}"
            cause = self._pass_error or "an error in the script's own backward"
            before, now = self._issued_before, issued_collectives()
            agree_to_abort(phase, cause, {name: now[name] - before.get(name, 0) for name in now})
        self._has_forward = False
        if was_backward:
            self.sharding.drop_gradients()
        self.sharding.abort_pass(in_backward=was_backward)
        if was_backward:
            self.sharding.drop_gradients()
            self.accumulation.restart_window()
            self._backwards = 0
            self._reporter.discard_window()
            print_rank0(
                "a backward has failed: the gradients of its accumulation window are dropped"
            )
        self._last_pass = self._pass_error = ""
        self._direct.reset()

    def prepare_backward(self, loss: Tensor) -> None:
        """Decide whether the coming backward of ``loss`` reduces gradients.

        Raises RuntimeError if it would train a parameter without a master.
        """
        for name, owner in self._without_masters:
            parameter = parameter_table(owner).get(name.rpartition(".")[2])
            if parameter is not None and parameter.requires_grad:
                raise RuntimeError(
                    f"{name} was frozen when this engine was built and has no fp32 master: set "
                    "requires_grad before initialize()"
                )
        self._backwards += 1
        self._issued_before, self._has_forward = issued_collectives(), False
        reduce = self._reduces and self.is_gradient_accumulation_boundary()
        if reduce or self._effective.zero.reduces_every_pass:
            require_all_ranks()
        self.sharding.before_backward(loss, reduce)

    def scale(self, loss: Tensor) -> Tensor:
        """Return ``loss`` times the loss scale (1 outside fp16), for a direct ``backward()``."""
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise MisuseError("scale() expects a scalar tensor: the loss to call backward() on")
        return self._direct.scale(loss)

    @in_phase("step")
    def step(self, lr_kwargs: Mapping[str, Any] | None = None) -> None:
        """End a micro batch; at a boundary, update the weights and step the schedule.

        ``lr_kwargs`` are passed to the schedule's ``step``: ``{"metrics": loss}`` for one that
        monitors it.
        """
        stepper = self._checked_stepper()
        self._step_applied = False
        if self.is_gradient_accumulation_boundary():
            require_all_ranks()
            with self._reporter.phase("step"):
                check_metrics(self.lr_scheduler, dict(lr_kwargs or {}))
                self._record_outcome(stepper.step(self.counters.global_steps + 1))
                self._count_step(dict(lr_kwargs or {}))
            self._reporter.boundary()
            if self._collects_garbage:
                gc.collect()
        self.counters.micro_steps += 1

    @in_phase("optimizer.step")
    def step_directly(self) -> None:
        """Update the weights without counters and schedule: ``optimizer.step()``, as in DeepSpeed.

        Without gradients, such as after ``engine.step()``, it does nothing. Raises MisuseError if
        the gradients are not reduced yet.
        """
        stepper = self._checked_stepper()
        if self.sharding.unreduced():
            raise MisuseError(
                "optimizer.step() was called before the end of an accumulation window, so the "
                "gradients are not reduced yet: call engine.step() after each backward, or "
                "engine.set_gradient_accumulation_boundary(True) before the last one"
            )
        self._step_applied = False
        if stepper.has_gradients():
            self._record_outcome(stepper.step_directly(self.counters.global_steps + 1))
            self._reporter.discard_window()
            self._backwards = 0

    @property
    def is_outside_step(self) -> bool:
        """Whether a call of the optimizer's ``step`` comes from the script."""
        stepper = self._stepper
        is_usable = not self._is_destroyed and self.sharding.has_model
        return is_usable and stepper is not None and not stepper.is_stepping

    def _checked_stepper(self) -> Stepper:
        """Return what updates the weights. Raises RuntimeError if they cannot be updated now."""
        self.require_states(EVERYTHING, "step()")
        if self._stepper is None:
            raise RuntimeError(
                "this engine has no optimizer: set `optimizer` in the config or pass one to "
                "initialize()"
            )
        if self._failed_pass == "backward":
            raise RuntimeError(
                "step() was called after a failed backward: continue with the next forward, which "
                "drops the gradients of this accumulation window"
            )
        if not self._reduces:
            raise MisuseError(
                "It is illegal to call Engine.step() inside no_sync context manager: the gradients "
                "are not reduced yet"
            )
        return self._stepper

    def _record_outcome(self, outcome: Outcome) -> None:
        self._step_applied = outcome.applied
        self._global_grad_norm = outcome.norm
        self._publish_optimizer_state(overflow=not outcome.applied)

    def _count_step(self, lr_kwargs: dict[str, Any]) -> None:
        if not self._step_applied:
            self.counters.skipped_steps += 1
        elif self.lr_scheduler is not None:
            self.lr_scheduler.step(**lr_kwargs)
        self.counters.global_steps += 1
        self.counters.global_samples += self._samples_of_window()
        self._backwards = 0

    def _samples_of_window(self) -> int:
        """Return the samples of a window, or of its micro batches if windows are not counted."""
        if self._effective.gradients.managed_accumulation:
            return self.train_batch_size()
        return self.train_micro_batch_size_per_gpu() * self.dp_world_size * self._backwards

    def _publish_optimizer_state(self, *, overflow: bool) -> None:
        if self.optimizer is not None:
            publish_state(
                self.optimizer,
                self.loss_scaler,
                overflow=overflow,
                stage=self.zero_optimization_stage(),
                dtype=self._policy.compute,
            )

    def allreduce_gradients(self, bucket_size: int | None = None) -> None:
        """Do nothing: ``backward`` reduces gradients at the end of a window."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients. ``step`` does this itself."""
        self.sharding.drop_gradients()

    def was_step_applied(self) -> bool:
        """Whether the last step() updated the weights."""
        return self._step_applied

    def get_global_grad_norm(self) -> float | None:
        """Return the gradient norm of the last boundary, before clipping."""
        return self._global_grad_norm

    # The model

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load full weights, with names as in the model or prefixed with ``module.``.

        The fp32 masters are updated too. Raises RuntimeError for keys that do not match.
        """
        self.require_states(EVERYTHING, "load_state_dict()")
        prefixed = all(name.startswith("module.") for name in state_dict)
        own = {
            name.removeprefix("module.") if prefixed else name: value
            for name, value in state_dict.items()
        }
        return self.sharding.load_full(own, strict=strict)

    def module_state_dict(self) -> dict[str, Any]:
        return self.module.state_dict()

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the model's forward with torch.compile; arguments are passed to it."""
        kwargs |= kwargs.pop("compile_kwargs", None) or {}
        self.sharding.prepare_for_compile()
        self.module.compile(*args, **kwargs)
        self.is_compiled = True

    def empty_partition_cache(self) -> None:
        """Reshard gathered units that are not in use (stage 3)."""
        self.sharding.release()

    @in_phase("destroy", allow_after_failure=True)
    def destroy(self) -> None:
        """Finish pending writes and release gradients and process groups."""
        if not self._is_destroyed:
            self._is_destroyed = True
            active_engines.discard(self)
            unregister()
        release_attention(self.sharding)
        with reported("destroy()"):
            self._close_files()
            self._reporter.close()
            if self._collects_garbage:
                gc.enable()
            self.sharding.drop_gradients()
            self._binding.close()
        self._stepper = None

    # The data

    def deepspeed_io(
        self,
        dataset: Any,
        batch_size: int | None = None,
        route: str = "train",
        pin_memory: bool = True,
        data_sampler: Any = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_local_io_workers: int | None = None,
    ) -> "TrainingLoader":
        """Return this rank's loader over ``dataset``.

        ``batch_size``: default the micro batch. ``route``: "train" shuffles; "eval" and "predict"
        keep the order. A ``data_sampler`` replaces both and yields this rank's samples.
        ``num_local_io_workers``: default 2 with an accelerator, 0 on CPU, where they would compete
        with training.
        """
        from dsengine.loop.data import TrainingLoader

        if num_local_io_workers is None:
            num_local_io_workers = 2 if torch.cuda.is_available() else 0
        return TrainingLoader(
            dataset,
            micro_batch=batch_size or self.train_micro_batch_size_per_gpu(),
            rank=self.topology.rank("samples"),
            world_size=self.topology.size("samples"),
            shuffle=route not in ("eval", "predict"),
            drop_last=self._effective.dataloader_drop_last,
            num_workers=num_local_io_workers,
            pin_memory=pin_memory,
            collate_fn=collate_fn or self.collate_fn,
            sampler=data_sampler,
        )

    def set_data_post_process_func(self, function: Any) -> None:
        """Pass every training batch through ``function(batch, state)``."""
        if self.training_dataloader is not None:
            self.training_dataloader.post_process_func = function

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return attribute_of_model(self.module, name)
