"""The engine: what ``initialize`` returns, and what a training loop calls."""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor
from torch.optim import Optimizer

from dsconfig import Plan
from dsengine.communication.peers import agree_to_abort, in_phase, unregister
from dsengine.communication.peers.message import cause_of
from dsengine.loop.direct_backward import DirectBackward
from dsengine.loop.join import Until, joined
from dsengine.loop.misuse import MisuseError
from dsengine.loop.offload_states import EVERYTHING, GRADIENTS, MODEL
from dsengine.loop.optimizer_compat import publish_state
from dsengine.loop.saving import SavingEngine
from dsengine.loop.stepping import Stepper
from dsengine.observation.printing import print_rank0
from dsengine.observation.reporter import Reporter
from dsengine.optimizers.loss_scale import LossScaler
from dsengine.optimizers.precision import Policy
from dsengine.optimizers.schedules import check_watched
from dsengine.sharding import Sharding
from dsengine.torch_private import is_in_backward, parameter_table

if TYPE_CHECKING:
    from dsengine.loop.data import TrainingLoader

T = TypeVar("T")

active_engines: "WeakSet[Engine]" = WeakSet()
"""The engines of this process that are not destroyed."""


class Engine(SavingEngine):
    """A model together with everything that trains it, as the plan decided.

    The loop is ``loss = engine(batch)``, ``engine.backward(loss)``, ``engine.step()`` for each
    micro batch: accumulation, clipping, overflow, schedule and zeroing happen in ``step``.
    Attributes the engine does not have are looked up in the model.
    """

    def __init__(
        self,
        *,
        plan: Plan,
        sharding: Sharding,
        policy: Policy,
        scaler: LossScaler,
        device: torch.device,
        optimizer: Optimizer | None,
        lr_scheduler: Any,
    ) -> None:
        super().__init__(plan, sharding, scaler, device, optimizer, lr_scheduler)
        effective = plan.effective
        self._policy = policy
        self.collate_fn: Callable[[list[Any]], Any] | None = None
        """What loaders make batches with, where they are given nothing else."""
        self._stepper = (
            Stepper(sharding, self._binding, scaler, effective, policy) if optimizer else None
        )
        self._without_masters = policy.without_masters(sharding.module)
        self._step_applied = False
        self._global_grad_norm: float | None = None
        self._reduces = True
        self._begun, self._is_passing = "", False
        """"forward" or "backward" while it lasts, and after an error has ended it."""
        self._ended_by = ""
        """That error, in words."""
        self.share = 1.0
        """What the loss of the batch in work weighs beside the other ranks': set by ``join``."""
        self._backwards = 0
        """Since the last boundary."""
        self._is_destroyed = False
        self._collects_garbage = bool(effective.config.get("disable_python_gc", False))
        if self._collects_garbage:
            gc.disable()
        self._direct = DirectBackward(self)
        self._reporter = Reporter(plan, self)
        self.tput_timer = self._reporter.throughput
        self._tell_optimizer(overflow=False)
        active_engines.add(self)

    # The loop

    @in_phase("forward")
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.need(MODEL, "forward()")
        if self._unfinished_pass:
            self._abort_pass(self._unfinished_pass)
        with self._reporter.phase("forward"), self._policy.autocast_context(self.device):
            self._reporter.takes(*args, *kwargs.values())
            if self._policy.casts_inputs:
                args, kwargs = self._policy.cast((args, kwargs))
            with self._passing("forward"):
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
        """Compute gradients of ``loss``; return it divided by the accumulation steps."""
        self.need(GRADIENTS, "backward()")
        if not isinstance(loss, Tensor):
            raise TypeError(f"backward() needs a loss tensor, not {type(loss).__name__}")
        if self._unfinished_pass == "forward":
            self._abort_pass("forward")
        if scale_wrt_gas and self.accumulation.steps > 1:
            loss = loss / self.accumulation.steps
        self.prepare_backward(loss)
        inside = self._direct.of_engine(frees_graph=not retain_graph)
        with inside, self._passing("backward"), self._reporter.phase("backward"):
            scale = self.loss_scaler.scale * self.share
            scaled = loss if scale == 1.0 else loss.float() * scale
            scaled.backward(retain_graph=retain_graph, **kwargs)
            self.sharding.after_backward()
        self._reporter.saw(loss)
        return loss

    @contextmanager
    def _passing(self, name: str) -> Iterator[None]:
        """Note which pass has begun until it has ended.

        What runs inside of one, a recomputation or a call of the engine in a hook, is part of it;
        checkpointing leaves a recomputation by an exception when it has what it needs.
        """
        if self._is_passing or is_in_backward():
            yield
            return
        self._begun, self._is_passing = name, True
        try:
            yield
        except BaseException as error:
            self._ended_by = cause_of(error)
            raise
        finally:
            self._is_passing = False
        self._begun = ""

    @property
    def _unfinished_pass(self) -> str:
        """The pass that an error has ended, "" for none."""
        if self._is_passing or is_in_backward():
            return ""
        return "backward" if self._direct.has_begun else self._begun

    def _abort_pass(self, name: str) -> None:
        """Get over a pass that an error has ended, which the script has caught.

        After a backward the gradients of its window are in part those of another one: they are
        dropped, and the window begins anew. All ranks have to give up the same pass, unless it was
        one in which they do not meet. Should this fail itself, for want of memory, the next forward
        tries again.

        Raises RankFailedError when other ranks do not give it up.
        """
        was_backward = name == "backward"
        if was_backward or self.sharding.has_forward_collectives:
            place = f"{name}() of micro step {self.counters.micro_steps + 1}"
            agree_to_abort(place, self._ended_by or "an error of the script's own backward")
        if was_backward:
            self.sharding.drop_gradients()
        self.sharding.abort_pass(in_backward=was_backward)
        if was_backward:
            self.sharding.drop_gradients()
            self.accumulation.begin_window_anew()
            self._backwards = 0
            self._reporter.forget_window()
            print_rank0("an error has ended a backward: the gradients of its window are dropped")
        self._begun = self._ended_by = ""
        self._direct.forget()

    def prepare_backward(self, loss: Tensor) -> None:
        """Settle whether the coming backward of ``loss`` reduces gradients.

        Raises RuntimeError where it would train what has no master.
        """
        for name, owner in self._without_masters:
            parameter = parameter_table(owner).get(name.rpartition(".")[2])
            if parameter is not None and parameter.requires_grad:
                raise RuntimeError(
                    f"{name} was frozen when this engine was built, so it has no fp32 master to "
                    "train: have it require a gradient before initialize()"
                )
        self._backwards += 1
        reduce = self._reduces and self.is_gradient_accumulation_boundary()
        self.sharding.before_backward(loss, reduce)

    def scale(self, loss: Tensor) -> Tensor:
        """Multiply by the loss scale (1 outside fp16), for ``loss.backward()`` of a script."""
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise MisuseError("scale() needs a scalar tensor: the loss that backward() begins at")
        return self._direct.scale(loss)

    @in_phase("step")
    def step(self, lr_kwargs: Mapping[str, Any] | None = None) -> None:
        """End a micro batch; at a boundary, update the weights and go on with the schedule.

        ``lr_kwargs`` go to the schedule's ``step``: ``{"metrics": loss}`` for one that watches it.
        """
        self.need(EVERYTHING, "step()")
        if self._stepper is None:
            raise RuntimeError(
                "this engine has no optimizer to step: give `optimizer` in the config or pass "
                "one to initialize()"
            )
        if self._unfinished_pass == "backward":
            raise RuntimeError(
                "step() after a backward that an error has ended: go on with the next forward, "
                "which drops the gradients of this window"
            )
        if not self._reduces:
            raise MisuseError(
                "It is illegal to call Engine.step() inside no_sync context manager: the gradients "
                "are not reduced yet"
            )
        self._step_applied = False
        if self.is_gradient_accumulation_boundary():
            with self._reporter.phase("step"):
                self._update(self._stepper, dict(lr_kwargs or {}))
            self._reporter.boundary()
            if self._collects_garbage:
                gc.collect()
        self.counters.micro_steps += 1

    def _update(self, stepper: Stepper, lr_kwargs: dict[str, Any]) -> None:
        check_watched(self.lr_scheduler, lr_kwargs)
        outcome = stepper.step(self.counters.global_steps + 1)
        self._step_applied = outcome.applied
        self._global_grad_norm = outcome.norm
        self._tell_optimizer(overflow=not outcome.applied)
        if outcome.applied and self.lr_scheduler is not None:
            self.lr_scheduler.step(**lr_kwargs)
        if not outcome.applied:
            self.counters.skipped_steps += 1
        self.counters.global_steps += 1
        self.counters.global_samples += self._samples_of_window()
        self._backwards = 0

    def _samples_of_window(self) -> int:
        """Those of a whole window; of the micro batches there were, where nobody counts windows."""
        if self._effective.gradients.managed_accumulation:
            return self.train_batch_size()
        return self.train_micro_batch_size_per_gpu() * self.dp_world_size * self._backwards

    def _tell_optimizer(self, *, overflow: bool) -> None:
        if self.optimizer is not None:
            publish_state(
                self.optimizer,
                self.loss_scaler,
                overflow=overflow,
                stage=self.zero_optimization_stage(),
                dtype=self._policy.compute,
            )

    def allreduce_gradients(self, bucket_size: int | None = None) -> None:
        """Nothing: ``backward`` has reduced the gradients at the end of a window."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients. ``step`` does it by itself."""
        self.sharding.drop_gradients()

    def was_step_applied(self) -> bool:
        """Whether the last step() updated the weights."""
        return self._step_applied

    def get_global_grad_norm(self) -> float | None:
        """Return the gradient norm of the last boundary, before clipping."""
        return self._global_grad_norm

    # Accumulation

    def join(self, batches: Iterable[T], *, until: Until = "last") -> Iterator[T]:
        """Yield this rank's ``batches``, as often on every rank: for data that is uneven.

        ``until`` "first": the ranks end together when the first of them has run out. "last": when
        the last one has; until then a rank without data is given its last batch again, whose loss
        weighs nothing, and a gradient is the mean over the ranks that have data. Each batch costs
        a sum of two integers over the ranks. Collective.

        Raises ValueError when a rank has no batch at all, or for another ``until``.
        """
        if until not in ("last", "first"):
            raise ValueError(f'join(until={until!r}): give "last" or "first"')
        return joined(self, batches, until)

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the micro batch in work ends an accumulation window."""
        return self.accumulation.is_boundary

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Say where windows end; holds until it is called again.

        Raises MisuseError with ``managed_gradient_accumulation`` false: there ``step`` ends them.
        """
        if not self.managed_gradient_accumulation():
            raise MisuseError(
                "set_gradient_accumulation_boundary() with managed_gradient_accumulation false: "
                "there every step() ends a window; leave one of the two out"
            )
        self.accumulation.forced = is_boundary

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Leave gradients unreduced inside; only where they are not divided (stages 0, 1)."""
        if self.zero_optimization_stage() >= 2:
            raise MisuseError(
                "no_sync context manager is incompatible with gradient partitioning logic of ZeRO "
                f"stage {self.zero_optimization_stage()}: coalesce_grad_reduction() reduces once "
                "at its end"
            )
        with self._unreduced():
            yield

    @contextmanager
    def coalesce_grad_reduction(self) -> Iterator[None]:
        """Let several backwards inside share one reduction, done on leaving.

        At stages 2 and 3 they are summed in the dtype of the weights until then, as in DeepSpeed.
        """
        with self._unreduced(), self.sharding.reduced_at_end():
            yield

    @contextmanager
    def _unreduced(self) -> Iterator[None]:
        if not self._reduces:
            raise MisuseError(
                "no_sync context manager reentry is unsupported: no_sync() and "
                "coalesce_grad_reduction() cannot be nested"
            )
        self._reduces = False
        try:
            yield
        finally:
            self._reduces = True

    # The model

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load whole weights, named as the model names them or with ``module.`` before.

        They reach the fp32 masters too. Raises RuntimeError for keys that do not match.
        """
        self.need(EVERYTHING, "load_state_dict()")
        prefixed = all(name.startswith("module.") for name in state_dict)
        own = {
            name.removeprefix("module.") if prefixed else name: value
            for name, value in state_dict.items()
        }
        return self.sharding.load_full(own, strict=strict)

    def module_state_dict(self) -> dict[str, Any]:
        return self.module.state_dict()

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the model's forward with torch.compile; arguments go to it."""
        kwargs |= kwargs.pop("compile_kwargs", None) or {}
        self.sharding.prepare_for_compile()
        self.module.compile(*args, **kwargs)

    def empty_partition_cache(self) -> None:
        """Free units that are gathered although nothing uses them (stage 3)."""
        self.sharding.release()

    @in_phase("destroy", allow_after_failure=True)
    def destroy(self) -> None:
        """Finish what is being written and let go of gradients and process groups."""
        if not self._is_destroyed:
            self._is_destroyed = True
            active_engines.discard(self)
            unregister()
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
        """Return this rank's loader over ``dataset``, in micro batches or of ``batch_size``.

        ``route``: "train" shuffles; "eval" and "predict" keep the order. A ``data_sampler`` gives
        this rank's samples in the place of both. Without ``num_local_io_workers`` two feed an
        accelerator; on CPU, where they would compete with training, none.
        """
        from dsengine.loop.data import TrainingLoader

        if num_local_io_workers is None:
            num_local_io_workers = 2 if torch.cuda.is_available() else 0
        return TrainingLoader(
            dataset,
            micro_batch=batch_size or self.train_micro_batch_size_per_gpu(),
            rank=self.global_rank,
            world_size=self.world_size,
            shuffle=route not in ("eval", "predict"),
            drop_last=self._effective.dataloader_drop_last,
            num_workers=num_local_io_workers,
            pin_memory=pin_memory,
            collate_fn=collate_fn or self.collate_fn,
            sampler=data_sampler,
        )

    def set_data_post_process_func(self, function: Any) -> None:
        """Have the training loader pass every batch through ``function(batch, state)``."""
        if self.training_dataloader is not None:
            self.training_dataloader.post_process_func = function

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(self.module, name)
