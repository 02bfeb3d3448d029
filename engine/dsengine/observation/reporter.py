"""Everything a plan wants to see of a run: lines, times, profiles, monitors."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

import dsconfig
from dsengine.observation.events import StepEvents
from dsengine.observation.memory import memory_line
from dsengine.observation.printing import logger, print_rank0, script_logger
from dsengine.observation.timers import Throughput, Timers

if TYPE_CHECKING:
    from dsengine.loop.engine import Engine

NOTHING = nullcontext()


class Reporter:
    """Watches the phases of an engine. Costs nothing for what the plan does not ask for."""

    def __init__(self, plan: dsconfig.Plan, engine: "Engine") -> None:
        settings = plan.effective.reporting
        self._settings = settings
        self._engine = engine
        timers = plan.effective.config.get("timers") or {}
        given = {"throughput": timers.get("throughput") or {}}
        throughput = dsconfig.block_values("timers", given)["throughput"]
        self._shows_throughput: bool = throughput["enabled"]
        self.throughput = Throughput(
            plan.batch.global_batch,
            engine.device,
            synchronized=throughput["synchronized"],
        )
        timed = settings.wall_clock_breakdown or settings.flops_profiler is not None
        self._timers = Timers(engine.device) if timed else None
        self._flops = self.communication = self._monitors = cast(Any, None)
        self._flops_due = False
        if settings.flops_profiler is not None:
            from dsengine.observation.flops import FlopsProfile

            self._flops = FlopsProfile(settings.flops_profiler, engine.module)
        if settings.comms_logger is not None:
            from dsengine.observation.communication import CommunicationLog

            self.communication = CommunicationLog(settings.comms_logger)
        if settings.monitors:
            from dsengine.observation.monitors import build_monitors

            self._monitors = build_monitors(settings.monitors)
        self._told = StepEvents.of(engine)
        self._watches = bool(self._timers or self.communication or settings.memory_breakdown)
        if settings.dump_state:
            print_rank0(f"the plan of this run\n{plan.to_json()}")
        level = plan.effective.config.get("log_level")
        if isinstance(level, str):
            for each in (logger, script_logger):
                each.setLevel(level.upper())

    def phase(self, name: str) -> AbstractContextManager[Any]:
        """The context in which the engine runs forward, backward or step."""
        return self._watched(name) if self._watches else NOTHING

    @contextmanager
    def _watched(self, name: str) -> Iterator[None]:
        with ExitStack() as watching:
            if self._timers is not None:
                watching.enter_context(self._timers.phase(name))
            if self.communication is not None:
                watching.enter_context(self.communication)
            if self._flops is not None and name == "forward" and self._engine.training:
                step = self._engine.global_steps + 1
                if self._flops.wants(step) and self._engine.global_rank == 0:
                    watching.enter_context(self._flops.counting())
                    self._flops_due = True
            yield
        if self._settings.memory_breakdown:
            print_rank0(memory_line(name, self._engine.device))

    def takes(self, *arguments: Any) -> None:
        """Note what a micro batch is made of, for who watches the run."""
        if self._told is not None:
            self._told.takes(arguments)

    def saw(self, loss: Tensor) -> None:
        """Note the loss of a micro batch, divided by the accumulation steps."""
        if self._told is not None:
            self._told.saw(loss)

    def forget_window(self) -> None:
        """The micro batches since the last boundary count no more."""
        if self._told is not None:
            self._told.forget_window()

    def boundary(self) -> None:
        """Report on the optimizer step that has just been taken or skipped."""
        engine = self._engine
        self.throughput.boundary()
        if self._told is not None:
            self._told.boundary()
        times = self._timers.take() if self._timers is not None else {}
        if self._flops_due:
            self._flops_due = False
            if not self._flops.write():
                print_rank0(self._flops.report())
        if self._monitors is not None and self._monitors.enabled:
            self._monitors.write_events(self._events(times))
        every = self._settings.steps_per_print
        if every and engine.global_steps % every == 0:
            self._print(times)

    def _print(self, times: dict[str, float]) -> None:
        engine = self._engine
        line = f"step={engine.global_steps}, skipped={engine.skipped_steps}"
        line += f", lr={engine.get_lr()}, mom={engine.get_mom()}"
        rate = self.throughput.avg_samples_per_sec() if self._shows_throughput else 0.0
        print_rank0(f"{line}, samples/s={rate:.1f}" if rate else line)
        if self._settings.wall_clock_breakdown and times:
            parts = " | ".join(f"{name}: {value:.2f}" for name, value in times.items())
            print_rank0(f"time (ms) | {parts}")
        if self.communication is not None:
            print_rank0(f"collectives so far\n{self.communication.summary()}")

    def _events(self, times: dict[str, float]) -> list[tuple[str, float, int]]:
        from dsengine.observation.monitors import LEARNING_RATE, LOSS_SCALE, elapsed_tag

        engine = self._engine
        samples = engine.global_samples
        rates = engine.get_lr()
        events = [(LEARNING_RATE, rates[0], samples)] if rates else []
        if engine.fp16_enabled():
            events.append((LOSS_SCALE, engine.loss_scale, samples))
        events += [(elapsed_tag(name), value, samples) for name, value in times.items()]
        return events

    def close(self) -> None:
        if self._told is not None:
            self._told.close()
        if self._monitors is not None:
            self._monitors.close()
