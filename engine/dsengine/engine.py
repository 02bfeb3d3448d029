"""The engine: what ``initialize`` returns, and what a training loop calls."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from dsconfig import Plan
from dsengine.accumulation import Accumulation
from dsengine.counters import Counters
from dsengine.optimizers import Binding
from dsengine.precision import LossScaler, Policy
from dsengine.reporting import say, step_line
from dsengine.saving import Saving
from dsengine.sharding import Sharding
from dsengine.stepping import Stepper


class Engine(Saving, nn.Module):
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
        optimizer: Optimizer | None = None,
        lr_scheduler: Any = None,
        training_dataloader: Any = None,
        steps_scheduler: bool = True,
    ) -> None:
        super().__init__()
        self.module = sharding.module
        self.plan = plan
        self.device = device
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.training_dataloader = training_dataloader
        self.counters = Counters()
        self.loss_scaler = scaler
        self.sharding = sharding
        self._policy = policy
        self._steps_scheduler = steps_scheduler
        effective = plan.effective
        self._accumulation = Accumulation(
            plan.batch.accumulation, effective.gradients.managed_accumulation, self.counters
        )
        self._binding = Binding(optimizer, sharding.masters) if optimizer else None
        self._stepper = (
            Stepper(sharding, self._binding, scaler, effective, policy) if self._binding else None
        )
        self._step_applied = False
        self._global_grad_norm: float | None = None
        self._reduces = True

    # The loop

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with self._policy.autocast_context(self.device):
            return self.sharding.forward(*args, **kwargs)

    def backward(
        self,
        loss: Tensor,
        retain_graph: bool = False,
        scale_wrt_gas: bool = True,
        **kwargs: Any,
    ) -> Tensor:
        """Compute gradients of ``loss``; return it divided by the accumulation steps."""
        if scale_wrt_gas and self._accumulation.steps > 1:
            loss = loss / self._accumulation.steps
        reduce = self._reduces and self.is_gradient_accumulation_boundary()
        self.sharding.before_backward(loss, reduce)
        scale = self.loss_scaler.scale
        scaled = loss if scale == 1.0 else loss.float() * scale
        scaled.backward(retain_graph=retain_graph, **kwargs)
        self.sharding.after_backward()
        return loss

    def step(self) -> None:
        """End a micro batch; at a boundary, update the weights and go on with the schedule."""
        if self._stepper is None:
            raise RuntimeError(
                "this engine has no optimizer to step: give `optimizer` in the config or pass "
                "one to initialize()"
            )
        self._step_applied = False
        if self.is_gradient_accumulation_boundary():
            self._update()
        self.counters.micro_steps += 1

    def _update(self) -> None:
        assert self._stepper is not None
        outcome = self._stepper.step(self.counters.global_steps + 1)
        self._step_applied = outcome.applied
        self._global_grad_norm = outcome.norm
        self.optimizer.overflow = not outcome.applied  # type: ignore[union-attr]
        if outcome.applied and self.lr_scheduler is not None and self._steps_scheduler:
            self.lr_scheduler.step()
        if not outcome.applied:
            self.counters.skipped_steps += 1
        self.counters.global_steps += 1
        self.counters.global_samples += self.plan.batch.global_batch
        every = self.steps_per_print()
        if every and self.counters.global_steps % every == 0:
            say(step_line(self.global_steps, self.skipped_steps, self.get_lr(), self.get_mom()))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients. ``step`` does it by itself."""
        self.sharding.drop_gradients()

    def destroy(self) -> None:
        """Finish what is being written and let go of gradients and process groups."""
        self._close_files()
        self.sharding.drop_gradients()
        self._stepper = None

    def optimizer_on_shards(self) -> AbstractContextManager[None]:
        """Let the optimizer hold the (sharded) parameters by which checkpoints know them."""
        return nullcontext() if self._binding is None else self._binding.as_sharded()

    # Accumulation

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the micro batch in work ends an accumulation window."""
        return self._accumulation.is_boundary

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Say where windows end; holds until it is called again."""
        self._accumulation.forced = is_boundary

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Leave gradients unreduced inside; only where they are not divided (stages 0, 1)."""
        if self.zero_optimization_stage() >= 2:
            raise RuntimeError(
                f"no_sync() cannot work at ZeRO stage {self.zero_optimization_stage()}: "
                "gradients are divided among ranks in every backward"
            )
        self._reduces, before = False, self._reduces
        try:
            yield
        finally:
            self._reduces = before

    # What happened

    @property
    def global_steps(self) -> int:
        return self.counters.global_steps

    @property
    def global_samples(self) -> int:
        return self.counters.global_samples

    @property
    def micro_steps(self) -> int:
        return self.counters.micro_steps

    @property
    def skipped_steps(self) -> int:
        return self.counters.skipped_steps

    def was_step_applied(self) -> bool:
        """Whether the last step() updated the weights."""
        return self._step_applied

    def get_global_grad_norm(self) -> float | None:
        """Return the gradient norm of the last boundary, before clipping."""
        return self._global_grad_norm

    def get_lr(self) -> list[float]:
        return [group["lr"] for group in self._groups()]

    def get_mom(self) -> list[Any]:
        return [group.get("betas", group.get("momentum")) for group in self._groups()]

    def _groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups if self.optimizer is not None else []

    # Settings

    @property
    def config(self) -> Mapping[str, Any]:
        """The config as a dict in DeepSpeed's language, nothing "auto"."""
        return dict(self.plan.effective.config)

    def gradient_accumulation_steps(self) -> int:
        return self._accumulation.steps

    def train_batch_size(self) -> int:
        return self.plan.batch.global_batch

    def train_micro_batch_size_per_gpu(self) -> int:
        return self.plan.batch.micro_batch

    def gradient_clipping(self) -> float:
        return self.plan.effective.gradients.clipping

    def steps_per_print(self) -> int | None:
        return self.plan.effective.reporting.steps_per_print

    def wall_clock_breakdown(self) -> bool:
        return self.plan.effective.reporting.wall_clock_breakdown

    def zero_optimization(self) -> bool:
        return self.zero_optimization_stage() > 0

    def zero_optimization_stage(self) -> int:
        return self.plan.effective.zero.stage

    def fp16_enabled(self) -> bool:
        return self.plan.effective.numerics.precision == "fp16"

    def bfloat16_enabled(self) -> bool:
        return self.plan.effective.numerics.precision == "bf16"

    def zero_gather_16bit_weights_on_model_save(self) -> bool:
        return self.plan.effective.zero.gather_16bit_weights_on_model_save

    def dynamic_loss_scale(self) -> bool:
        return self.loss_scaler.dynamic and self.fp16_enabled()

    @property
    def loss_scale(self) -> float:
        return self.loss_scaler.scale

    @property
    def global_rank(self) -> int:
        return dist.get_rank()

    @property
    def world_size(self) -> int:
        return dist.get_world_size()

    @property
    def dp_world_size(self) -> int:
        return self.plan.mesh.data_parallel

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(self.module, name)
