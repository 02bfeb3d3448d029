"""The optimizer step at the end of an accumulation window.

[Note: order of a step]
Give parameters without a gradient one of zeros, as DeepSpeed does -> compute the norm of the
reduced, still scaled gradients -> on overflow drop them and lower the scale -> unscale and clip in
one multiplication, with the scale used in backward -> optimizer step -> refresh the parameters ->
drop the gradients -> update the loss scale. DeepSpeed updates the scale before unscaling, which
halves the gradients of a step at which the scale doubles; dsengine does not.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass

from torch import Tensor

from dsconfig import Effective
from dsengine.observation.printing import print_rank0
from dsengine.optimizers import Binding
from dsengine.optimizers.gradients import (
    NonFiniteGradientError,
    clipping_factor,
    describe_non_finite,
    global_norm,
    scale_gradients,
)
from dsengine.optimizers.loss_scale import LossScaler
from dsengine.optimizers.precision import Policy
from dsengine.sharding import Gradients, Sharding
from dsengine.sharding.order import OrderError
from dsengine.topology import Topology

INFINITE = float("inf")


@dataclass(frozen=True, slots=True)
class Outcome:
    """``norm``: of the unscaled gradients before clipping; None if not computed."""

    applied: bool
    norm: float | None


class Stepper:
    """Applies the optimizer to the reduced gradients of a sharding."""

    def __init__(
        self,
        topology: Topology,
        sharding: Sharding,
        gradients: Gradients,
        binding: Binding,
        scaler: LossScaler,
        effective: Effective,
        policy: Policy,
        counted_elsewhere: Set[str] = frozenset(),
    ) -> None:
        """``counted_elsewhere``: names of weights that the norm counts on another stage."""
        self._topology = topology
        self._counted_elsewhere = counted_elsewhere
        divides = topology.size("pipeline") > 1
        self._stages = topology.group("pipeline") if divides else None
        self._sharding = sharding
        self._gradients = gradients
        self._binding = binding
        self._scaler = scaler
        self.is_stepping = False
        """Whether the optimizer is running its own step."""
        self._is_fp16 = policy.uses_fp16
        self._is_replicated_fp32 = (
            effective.zero.stage == 0 and not policy.is_mixed and not self._is_fp16
        )
        self._clipping = effective.gradients.clipping
        self._skips_overflow = self._is_fp16 or (
            policy.is_mixed and effective.numerics.check_grad_overflow
        )
        self._tolerates_unused = effective.zero.ignore_unused_parameters
        self._needs_norm = (
            self._clipping > 0 or self._skips_overflow or effective.gradients.compute_norm
        )

    def step(self, number: int) -> Outcome:
        """Update the masters and the module. ``number``: the step's, for messages."""
        if not self._tolerates_unused:
            self._check_all_used()
        gradients = self._binding.gradients(iter(self._complete_gradients()))
        scale = self._scaler.scale
        norm = None
        if self._needs_norm:
            norm, has_same_order = global_norm(
                self._counted(gradients),  # their list would keep gradients alive
                self._gradients.norm_group,
                self._gradients.reduction_order,
                self._stages,
            )
            if not has_same_order:
                self._gradients.drop()
                raise OrderError(number)
            norm /= scale
            if not norm < INFINITE:
                return self._skip(number)
            scale_gradients([*gradients.values()], clipping_factor(norm, self._clipping) / scale)
        elif scale != 1.0:
            scale_gradients([*gradients.values()], 1.0 / scale)
        del gradients  # free them before full parameters are refreshed
        self._step_optimizer()
        self._gradients.drop_reduced()
        self._sharding.after_update(frozen=False)
        self._scaler.update(overflow=False)
        return Outcome(applied=True, norm=norm)

    def _counted(self, gradients: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the gradients that this rank adds to the norm."""
        elsewhere = self._counted_elsewhere
        if elsewhere:
            gradients = {name: each for name, each in gradients.items() if name not in elsewhere}
        return self._gradients.counted_in_norm(gradients)

    def step_directly(self, number: int) -> Outcome:
        """Update the weights as the ``step`` of DeepSpeed's optimizer does.

        At stage 0 in fp32, without a loss scale, that is torch's: it does not clip, and gradients
        remain until ``zero_grad``.
        """
        if not self._is_replicated_fp32:
            return self.step(number)
        self._complete_gradients()
        self._step_optimizer()
        return Outcome(applied=True, norm=None)

    def _step_optimizer(self) -> None:
        self._binding.assign_gradients()
        self.is_stepping = True
        try:
            self._binding.step()
        finally:
            self.is_stepping = False
        self._binding.drop_gradients()

    def has_gradients(self) -> bool:
        """Whether any parameter has a reduced gradient."""
        return next(self._gradients.reduced(), None) is not None

    def _check_all_used(self) -> None:
        unused = self._gradients.missing()
        if unused:
            raise RuntimeError(
                f"{unused[0]!r} and {len(unused) - 1} more parameters have no gradient; set "
                "zero_optimization.ignore_unused_parameters: true to allow this"
            )

    def _complete_gradients(self) -> list[tuple[str, Tensor]]:
        """Return all reduced gradients; unused parameters get zeros.

        So momentum and weight decay apply to them. If no parameter has a gradient there is nothing
        to step, and none gets zeros.
        """
        reduced = list(self._gradients.reduced())
        if not reduced or len(reduced) == len(self._sharding.masters):
            return reduced
        without = self._gradients.missing()
        unused = self._binding.trained(without) if without else []
        if not unused:
            return reduced
        self._gradients.add_zeros(unused)
        return list(self._gradients.reduced())

    def _skip(self, number: int) -> Outcome:
        """Skip the update. In fp16 an overflow lowers the loss scale."""
        if not self._is_fp16:
            ranks = self._topology.group("all")
            problem = f"{describe_non_finite(self._gradients.reduced(), ranks)} at step {number}"
            if not self._skips_overflow:
                raise NonFiniteGradientError(
                    f"{problem}; the weights are unchanged. Check the loss and the data of this "
                    "step, or lower the learning rate"
                )
            print_rank0(
                f"{problem}: skipping the step. Check the loss and the data if this persists"
            )
        self._gradients.drop()
        self._scaler.update(overflow=True)
        return Outcome(applied=False, norm=INFINITE)
