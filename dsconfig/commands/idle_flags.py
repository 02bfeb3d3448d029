"""Flags that the file has settled otherwise: the file holds, and that is said."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.runtimes.effective import Effective


def idle_flags(effective: "Effective", facts: "Facts") -> Iterator[str]:
    """One sentence for each flag whose value is not the one of the config."""
    training, batch = facts.training, effective.batch
    if training is None:
        return
    asked = {
        "--micro-batch": ("train_micro_batch_size_per_gpu", training.micro_batch_size),
        "--global-batch": ("train_batch_size", training.global_batch_size),
        "--accumulation": ("gradient_accumulation_steps", training.gradient_accumulation_steps),
    }
    if batch is not None:
        holds = (batch.micro_batch, batch.global_batch, batch.accumulation)
        for (flag, (key, value)), held in zip(asked.items(), holds, strict=True):
            if value is not None and value != held:
                yield _sentence(flag, value, f"{key} is {held}", f"{key}={value}")
    precision = training.precision
    now = str(effective.numerics.precision)
    if precision is not None and precision != now:
        switches = {now: "false", precision: "true"}
        change = " --set ".join(f"{n}.enabled={to}" for n, to in switches.items() if n != "fp32")
        yield _sentence("--precision", precision, f"the config trains in {now}", change)


def _sentence(flag: str, value: object, held: str, change: str) -> str:
    return f"{flag} {value} has no effect: {held}. To change it: --set {change}"


def say_idle_flags(effective: "Effective", facts: "Facts") -> None:
    """Print them on standard error."""
    import typer

    for sentence in idle_flags(effective, facts):
        typer.echo(sentence, err=True)
