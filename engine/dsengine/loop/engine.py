"""The engine that ``initialize`` returns and a training loop calls."""

import gc
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakSet, ref

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

import dsconfig
from dsconfig import Plan
from dsconfig.features.table import FEATURES
from dsengine.checkpoints.export.iteration import OpenIteration
from dsengine.communication.exit_watch import reported
from dsengine.communication.peers import in_phase, require_all_ranks, unregister
from dsengine.loop.accumulating import Windows
from dsengine.loop.counters import Accumulation, Counters
from dsengine.loop.data import Collate, Loaders
from dsengine.loop.deepspeed_attributes import TABLE, with_table
from dsengine.loop.direct_backward import DirectBackward
from dsengine.loop.exporting import Exports
from dsengine.loop.generating import Generation
from dsengine.loop.misuse import MisuseError
from dsengine.loop.offload_states import EVERYTHING, GRADIENTS, MODEL, Offloading
from dsengine.loop.optimizer_compat import OptimizerAdapter
from dsengine.loop.passes import Passes
from dsengine.loop.pipelining import ATTRIBUTES as PIPELINE_ATTRIBUTES
from dsengine.loop.pipelining import SETTABLE, Pipeline
from dsengine.loop.process_settings import ProcessSettings
from dsengine.loop.saving import Checkpoints, Resumed, model_dtype
from dsengine.loop.stepping import Outcome, Stepper
from dsengine.observation.reporter import Reporter
from dsengine.optimizers import Binding
from dsengine.optimizers.loss_scale import LossScaler
from dsengine.optimizers.precision import Policy
from dsengine.optimizers.schedules import check_metrics
from dsengine.optimizers.schedules.base import assign_lr, groups_of
from dsengine.parallel.pipeline.module import PipelineError, PipelineModule
from dsengine.sharding import Gradients, Sharding, restore_process
from dsengine.topology import Topology
from dsengine.torch_private.modules import MoveAwareModule

P = ParamSpec("P")
R = TypeVar("R")

active_engines: "WeakSet[Engine]" = WeakSet()
"""Engines of this process that are not destroyed."""


def of_part(
    part: str, method: Callable[Concatenate[Any, P], R]
) -> Callable[Concatenate[Any, P], R]:
    """Return a method of the engine that calls ``method`` of its attribute ``part``."""

    @wraps(method)
    def call(engine: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return getattr(getattr(engine, part), method.__name__)(*args, **kwargs)

    return call


def outside_pipelines(
    call: str,
) -> Callable[[Callable[Concatenate[Any, P], R]], Callable[Concatenate[Any, P], R]]:
    """Make a method, which users know as ``call``, raise PipelineError in a pipeline."""

    def decorate(
        method: Callable[Concatenate[Any, P], R],
    ) -> Callable[Concatenate[Any, P], R]:
        @wraps(method)
        def run(engine: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
            if engine._pipeline is not None:
                raise PipelineError(f"{call}: {FEATURES['pipeline_loop'].text}")
            return method(engine, *args, **kwargs)

        return run

    return decorate


def attribute_of_part(part: str, name: str) -> Any:
    """Return a property for attribute ``name`` of the engine's ``part``."""
    return property(
        lambda engine: getattr(getattr(engine, part), name),
        lambda engine, value: setattr(getattr(engine, part), name, value),
        lambda engine: delattr(getattr(engine, part), name),
    )


@with_table
class Engine(MoveAwareModule):
    """A model with everything that trains it, as planned.

    The loop is ``loss = engine(batch)``, ``engine.backward(loss)``, ``engine.step()`` for each
    micro batch; ``step`` handles accumulation, clipping, overflow, the schedule and zeroing
    gradients. Its other attributes are those of ``deepspeed_attributes``, or else the model's.
    """

    def __init__(
        self,
        *,
        plan: Plan,
        topology: Topology,
        sharding: Sharding,
        gradients: Gradients,
        policy: Policy,
        scaler: LossScaler,
        device: torch.device,
        optimizer: Optimizer | None,
        binding: Binding,
        lr_scheduler: Any,
        collate_fn: Collate | None,
        process: ProcessSettings,
    ) -> None:
        super().__init__()
        effective = self._effective = plan.effective
        engine: Any = ref(self)  # no cycle: it ends with its last reference
        managed, stage = effective.gradients.managed_accumulation, effective.zero.stage
        self.module = sharding.module
        self.plan = plan
        self.topology = topology
        self.device = device
        self.sharding = sharding
        self._gradients = gradients
        self.optimizer = optimizer
        self.binding: Binding = binding
        self.loss_scaler: LossScaler = scaler
        self.counters: Counters = Counters()
        self._accumulation: Accumulation = Accumulation(
            plan.batch.accumulation, managed, self.counters
        )
        self._policy: Policy = policy
        self._iteration: OpenIteration = OpenIteration()
        self._resumed: Resumed = Resumed(lr_scheduler, scaler, self._accumulation)
        self._windows: Windows = Windows(
            self._accumulation, self.counters, gradients, topology, stage
        )
        self._offloading: Offloading = Offloading(
            sharding,
            gradients,
            binding,
            device,
            self._iteration,
            effective.zero.offload_param is not None,
        )
        self._checkpoints: Checkpoints = Checkpoints(
            plan, topology, sharding, binding, self._offloading, self._resumed, self.counters
        )
        self._exports: Exports = Exports(
            sharding, binding, self._offloading, self._iteration, self.counters, model_dtype(plan)
        )
        self._generation: Generation = Generation(
            sharding, topology, self._offloading, self.counters
        )
        self._loaders: Loaders = Loaders(plan, topology, collate_fn)
        self._reporter: Reporter = Reporter(
            plan, sharding.module, device, self.counters, lambda: engine().optimizer, scaler
        )
        self._passes: Passes = Passes(
            sharding,
            gradients,
            self._windows,
            self.counters,
            self._reporter,
            policy.frozen_without_masters(sharding.module),
            effective.zero.reduces_every_pass,
            lambda: bool(engine().is_gradient_accumulation_boundary()),
        )
        self._direct: DirectBackward = DirectBackward(
            gradients, self._windows, scaler, self._passes.prepare_backward
        )
        self._pipeline: Pipeline | None = None
        if isinstance(sharding.module, PipelineModule):
            self._pipeline = Pipeline(
                sharding.module,
                plan,
                topology,
                device,
                sharding,
                gradients,
                policy,
                scaler,
                self._passes,
                self.counters,
                self._reporter,
                self._offloading,
                lambda: engine()._end_micro_batch({}),
            )
            self.mpu = self._pipeline.grid
        self._stepper: Stepper | None = None
        self._adapter: OptimizerAdapter | None = None
        if optimizer is not None:
            self._stepper = Stepper(
                topology,
                sharding,
                gradients,
                binding,
                scaler,
                effective,
                policy,
                frozenset() if self._pipeline is None else self._pipeline.counted_elsewhere,
            )
            self._adapter = OptimizerAdapter(
                optimizer, scaler, self, stage=stage, dtype=policy.compute
            )
        self.tput_timer = self._reporter.throughput
        self._step_applied = False
        self._global_grad_norm: float | None = None
        self._is_destroyed = False
        self._process: ProcessSettings = process
        active_engines.add(self)

    # The loop

    @outside_pipelines("forward()")
    @in_phase("forward")
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._offloading.require(MODEL, "forward()")
        if self._failed_pass:
            self._abort_pass(self._failed_pass)
        if self._effective.zero.stage == 3 and torch.is_grad_enabled():
            require_all_ranks()
        phase = self._reporter.phase("forward", trains=self.training)
        with phase, self._policy.autocast_context(self.device):
            self._reporter.record_inputs(*args, *kwargs.values())
            if self._policy.casts_inputs:
                args, kwargs = self._policy.cast((args, kwargs))
            with self._passes.run("forward"):
                outputs = self.sharding.forward(*args, **kwargs)
        if torch.is_grad_enabled():
            self._direct.watch(outputs)
        return outputs

    @outside_pipelines("backward()")
    @in_phase("backward")
    def backward(
        self,
        loss: Tensor,
        retain_graph: bool = False,
        scale_wrt_gas: bool = True,
        **kwargs: Any,
    ) -> Tensor:
        """Compute gradients of ``loss``; return ``loss`` divided by the accumulation steps."""
        self._offloading.require(GRADIENTS, "backward()")
        if not isinstance(loss, Tensor):
            raise TypeError(f"backward() expects a loss tensor, not {type(loss).__name__}")
        if self._failed_pass == "forward":
            self._abort_pass("forward")
        if isinstance(loss, DTensor):  # of logits split along the vocabulary
            loss = loss.full_tensor()
        if scale_wrt_gas and self._accumulation.steps > 1:
            loss = loss / self._accumulation.steps
        self._passes.prepare_backward([loss])
        inside = self._direct.in_engine_backward(frees_graph=not retain_graph)
        with inside, self._passes.run("backward"), self._reporter.phase("backward"):
            scale = self.loss_scaler.scale * self._windows.loss_weight
            scaled = loss if scale == 1.0 else loss.float() * scale
            scaled.backward(retain_graph=retain_graph, **kwargs)
            self._gradients.after_backward()
        self._reporter.record_loss(loss)
        return loss

    @property
    def _failed_pass(self) -> str:
        """The pass that ended with an error, "" for none."""
        if self._direct.has_begun and not self._passes.is_inside:
            return "backward"
        return self._passes.failed

    def _abort_pass(self, name: str) -> None:
        self._passes.abort(name)
        self._direct.reset()

    @outside_pipelines("scale()")
    def scale(self, loss: Tensor) -> Tensor:
        """Return ``loss`` times the loss scale (1 outside fp16), for a direct ``backward()``."""
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise MisuseError("scale() expects a scalar tensor: the loss to call backward() on")
        return self._direct.scale(loss)

    @outside_pipelines("step()")
    def step(self, lr_kwargs: Mapping[str, Any] | None = None) -> None:
        """End a micro batch; at a boundary, update the weights and step the schedule.

        ``lr_kwargs`` are passed to the schedule's ``step``: ``{"metrics": loss}`` for one that
        monitors it.
        """
        self._end_micro_batch(dict(lr_kwargs or {}))

    @in_phase("step")
    def _end_micro_batch(self, lr_kwargs: dict[str, Any]) -> None:
        stepper = self._checked_stepper()
        self._step_applied = False
        if self.is_gradient_accumulation_boundary():
            require_all_ranks()
            with self._reporter.phase("step"):
                check_metrics(self.lr_scheduler, lr_kwargs)
                self._record_outcome(stepper.step(self.counters.global_steps + 1))
                self._count_step(lr_kwargs)
            self._reporter.boundary()
            if self._effective.disable_python_gc:
                gc.collect()
        self.counters.micro_steps += 1

    @outside_pipelines("optimizer.step()")
    @in_phase("optimizer.step")
    def step_directly(self) -> None:
        """Update the weights without counters and schedule: ``optimizer.step()``, as in DeepSpeed.

        Without gradients, such as after ``engine.step()``, it does nothing. Raises MisuseError if
        the gradients are not reduced yet.
        """
        stepper = self._checked_stepper()
        if self._gradients.unreduced():
            raise MisuseError(
                "optimizer.step() was called before the end of an accumulation window, so the "
                "gradients are not reduced yet: call engine.step() after each backward, or "
                "engine.set_gradient_accumulation_boundary(True) before the last one"
            )
        self._step_applied = False
        if stepper.has_gradients():
            self._record_outcome(stepper.step_directly(self.counters.global_steps + 1))
            self._reporter.discard_window()
            self._windows.backwards = 0

    @property
    def is_outside_step(self) -> bool:
        """Whether a call of the optimizer's ``step`` comes from the script."""
        stepper = self._stepper
        is_usable = not self._is_destroyed and self.sharding.has_model
        return is_usable and stepper is not None and not stepper.is_stepping

    def _checked_stepper(self) -> Stepper:
        """Return what updates the weights. Raises RuntimeError if they cannot be updated now."""
        self._offloading.require(EVERYTHING, "step()")
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
        if not self._windows.reduces:
            raise MisuseError(
                "It is illegal to call Engine.step() inside no_sync context manager: the gradients "
                "are not reduced yet"
            )
        return self._stepper

    def _record_outcome(self, outcome: Outcome) -> None:
        self._step_applied = outcome.applied
        self._global_grad_norm = outcome.norm
        if self._adapter is not None:
            self._adapter.publish(overflow=not outcome.applied)

    def _count_step(self, lr_kwargs: dict[str, Any]) -> None:
        if not self._step_applied:
            self.counters.skipped_steps += 1
        elif self.lr_scheduler is not None:
            self.lr_scheduler.step(**lr_kwargs)
        self.counters.global_steps += 1
        self.counters.global_samples += self._samples_of_window()
        self._windows.backwards = 0

    def _samples_of_window(self) -> int:
        """Return the samples of a window, or of its micro batches if windows are not counted."""
        if self._effective.gradients.managed_accumulation:
            return self.train_batch_size()
        return self.train_micro_batch_size_per_gpu() * self.dp_world_size * self._windows.backwards

    def allreduce_gradients(self, bucket_size: int | None = None) -> None:
        """Do nothing: ``backward`` reduces gradients at the end of a window."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients. ``step`` does this itself."""
        self._gradients.drop()

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
        self._offloading.require(EVERYTHING, "load_state_dict()")
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
        """Finish pending writes; release gradients, process groups and changes of the process."""
        if not self._is_destroyed:
            self._is_destroyed = True
            active_engines.discard(self)
            unregister()
        restore_process(self.sharding, self.topology)
        self._process.restore()
        with reported("destroy()"):
            self._iteration.end()
            self._checkpoints.close()
            self._exports.close()
            self._reporter.close()
            self._gradients.drop()
            self.binding.close()
        self._stepper = None

    # Parts

    collate_fn = attribute_of_part("_loaders", "collate_fn")
    lr_scheduler = attribute_of_part("_resumed", "lr_scheduler")
    training_dataloader = attribute_of_part("_resumed", "training_dataloader")

    checkpointer = of_part("_checkpoints", Checkpoints.checkpointer)
    coalesce_grad_reduction = outside_pipelines("coalesce_grad_reduction()")(
        of_part("_windows", Windows.coalesce_grad_reduction)
    )
    deepspeed_io = of_part("_loaders", Loaders.deepspeed_io)
    generate = outside_pipelines("generate()")(of_part("_generation", Generation.generate))
    is_gradient_accumulation_boundary = of_part(
        "_windows", Windows.is_gradient_accumulation_boundary
    )
    iter_weights = of_part("_exports", Exports.iter_weights)
    join = outside_pipelines("join()")(of_part("_windows", Windows.join))
    load_checkpoint = of_part("_checkpoints", Checkpoints.load_checkpoint)
    load_pretrained = of_part("_checkpoints", Checkpoints.load_pretrained)
    no_sync = outside_pipelines("no_sync()")(of_part("_windows", Windows.no_sync))
    offload_states = of_part("_offloading", Offloading.offload_states)
    reload_states = of_part("_offloading", Offloading.reload_states)
    save_16bit_model = save_fp16_model = of_part("_checkpoints", Checkpoints.save_16bit_model)
    save_checkpoint = of_part("_checkpoints", Checkpoints.save_checkpoint)
    set_gradient_accumulation_boundary = outside_pipelines("set_gradient_accumulation_boundary()")(
        of_part("_windows", Windows.set_gradient_accumulation_boundary)
    )
    weight_metadata = of_part("_exports", Exports.weight_metadata)
    _consolidated_16bit_state_dict = of_part(
        "_checkpoints", Checkpoints.consolidated_16bit_state_dict
    )
    _zero3_consolidated_16bit_state_dict = _consolidated_16bit_state_dict

    def moving_tensors(self) -> AbstractContextManager[None]:
        return self._offloading.moving_tensors()

    def set_lr(self, rate: float) -> None:
        for group in groups_of(self.optimizer):
            assign_lr(group, rate)

    def set_data_post_process_func(self, function: Any) -> None:
        """Pass every training batch through ``function(batch, state)``."""
        if self.training_dataloader is not None:
            self.training_dataloader.post_process_func = function

    # DeepSpeed's other attributes, and the model's

    @cached_property
    def _config_values(self) -> dict[str, Any]:
        return dsconfig.config_values(self._effective.config)

    def __setattr__(self, name: str, value: Any) -> None:
        pipeline = self.__dict__.get("_pipeline")
        if pipeline is None or name not in PIPELINE_ATTRIBUTES:
            super().__setattr__(name, value)
        elif name in SETTABLE:
            setattr(pipeline, name, value)
        else:
            raise AttributeError(
                f"engine.{name} of a pipeline follows from the config and the PipelineModule: "
                "change those and call initialize() again"
            )

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in ("module", "_pipeline"):
                raise
            if self._pipeline is not None and name in PIPELINE_ATTRIBUTES:
                return getattr(self._pipeline, name)
        try:
            return getattr(self.module, name)
        except AttributeError:
            if name in TABLE:  # refused, or its getter has failed
                TABLE[name].__get__(self, type(self))
            raise
