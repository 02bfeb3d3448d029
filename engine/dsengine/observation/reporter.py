"""Reports configured in a plan: step lines, times, profiles, monitors."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import dsconfig
from dsengine.observation.events import StepEvents
from dsengine.observation.memory import memory_line
from dsengine.observation.printing import print_rank0
from dsengine.observation.timers import Throughput, Timers
from dsengine.optimizers.loss_scale import LossScaler
from dsengine.optimizers.schedules.base import learning_rates, momenta
from dsengine.topology import rank

NOTHING = nullcontext()


class Reporter:
    """Observes the phases of an engine. Reports that are not enabled cost nothing.

    ``optimizer`` returns the engine's, which a script may replace.
    """

    def __init__(
        self,
        plan: dsconfig.Plan,
        module: nn.Module,
        device: torch.device,
        counters: Any,
        optimizer: Callable[[], Optimizer | None],
        scaler: LossScaler,
    ) -> None:
        settings = plan.effective.reporting
        self._settings = settings
        self._device = device
        self._counters = counters
        self._optimizer = optimizer
        self._loss_scale = scaler if plan.effective.numerics.precision == "fp16" else None
        self._shows_throughput = settings.throughput
        self.throughput = Throughput(
            plan.batch.global_batch,
            device,
            synchronized=settings.throughput_synchronized,
        )
        timed = settings.wall_clock_breakdown or settings.flops_profiler is not None
        self._timers = Timers(device) if timed else None
        self._flops = self.communication = self._monitors = cast(Any, None)
        self._flops_due = False
        if settings.flops_profiler is not None:
            from dsengine.observation.flops import FlopsProfile

            self._flops = FlopsProfile(settings.flops_profiler, module)
        if settings.comms_logger is not None:
            from dsengine.observation.communication import CommunicationLog

            self.communication = CommunicationLog(settings.comms_logger)
        if settings.monitors:
            from dsengine.observation.monitors import build_monitors

            self._monitors = build_monitors(settings.monitors)
        self._events = StepEvents.of(plan, device, optimizer)
        self._observes = bool(self._timers or self.communication or settings.memory_breakdown)
        if settings.dump_state:
            print_rank0(f"plan of this run:\n{plan.to_json()}")

    def phase(self, name: str, *, trains: bool = False) -> AbstractContextManager[Any]:
        """Return the context in which the engine runs forward, backward or step.

        ``trains``: whether a forward is in training mode.
        """
        return self._observed(name, trains) if self._observes else NOTHING

    @contextmanager
    def _observed(self, name: str, trains: bool) -> Iterator[None]:
        with ExitStack() as stack:
            if self._timers is not None:
                stack.enter_context(self._timers.phase(name))
            if self.communication is not None:
                stack.enter_context(self.communication)
            flops = self._flops if trains and rank() == 0 else None
            if flops is not None and flops.is_due(self._counters.global_steps + 1):
                stack.enter_context(flops.counting())
                self._flops_due = True
            yield
        if self._settings.memory_breakdown:
            print_rank0(memory_line(name, self._device))

    def record_inputs(self, *arguments: Any) -> None:
        """Record the inputs of a micro batch."""
        if self._events is not None:
            self._events.record_inputs(arguments)

    def record_loss(self, loss: Tensor) -> None:
        """Record the loss of a micro batch, divided by the accumulation steps."""
        if self._events is not None:
            self._events.record_loss(loss)

    def discard_window(self) -> None:
        """Drop what was recorded since the last boundary."""
        if self._events is not None:
            self._events.discard_window()

    def boundary(self) -> None:
        """Report the optimizer step that was just taken or skipped."""
        steps = self._counters.global_steps
        self.throughput.boundary()
        if self._events is not None:
            self._events.boundary(steps)
        times = self._timers.take() if self._timers is not None else {}
        if self._flops_due:
            self._flops_due = False
            if not self._flops.write():
                print_rank0(self._flops.report())
        if self._monitors is not None and self._monitors.enabled:
            self._monitors.write_events(self._monitor_events(times))
        interval = self._settings.steps_per_print
        if interval and steps % interval == 0:
            self._print(times)

    def _print(self, times: dict[str, float]) -> None:
        line = f"step={self._counters.global_steps}, skipped={self._counters.skipped_steps}"
        line += f", lr={learning_rates(self._optimizer())}, mom={momenta(self._optimizer())}"
        rate = self.throughput.avg_samples_per_sec() if self._shows_throughput else 0.0
        print_rank0(f"{line}, samples/s={rate:.1f}" if rate else line)
        if self._settings.wall_clock_breakdown and times:
            parts = " | ".join(f"{name}: {value:.2f}" for name, value in times.items())
            print_rank0(f"time (ms) | {parts}")
        if self.communication is not None:
            print_rank0(f"collectives so far:\n{self.communication.summary()}")

    def _monitor_events(self, times: dict[str, float]) -> list[tuple[str, float, int]]:
        from dsengine.observation.monitors import LEARNING_RATE, LOSS_SCALE, elapsed_tag

        samples = self._counters.global_samples
        rates = learning_rates(self._optimizer())
        events = [(LEARNING_RATE, rates[0], samples)] if rates else []
        if self._loss_scale is not None:
            events.append((LOSS_SCALE, self._loss_scale.scale, samples))
        events += [(elapsed_tag(name), value, samples) for name, value in times.items()]
        return events

    def close(self) -> None:
        if self._events is not None:
            self._events.close()
        if self._monitors is not None:
            self._monitors.close()
