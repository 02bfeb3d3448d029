"""``dsconfig plan FILE``: what would run, decided in every detail."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsconfig.commands import options

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.planner.plan import Plan

Out = Annotated[Path | None, typer.Option("-o", "--output", help="Write the plan as JSON here.")]
Simulate = Annotated[
    bool,
    typer.Option("--simulate", help="Dry-run the engine on fake tensors at this world size."),
]


@options.with_facts()
def plan(
    file: options.ConfigFile,
    *,
    facts: "Facts",
    overrides: options.Overrides = None,
    runtime: options.RuntimeName = None,
    deepspeed_version: options.DeepSpeedVersion = None,
    simulate: Simulate = False,
    output: Out = None,
    output_format: options.OutputFormat = "full",
) -> None:
    """Show the whole plan: mesh, units, precision, tiers, memory, traffic, every key's fate."""
    from dsconfig.commands.idle_flags import say_idle_flags
    from dsconfig.commands.prepare import FOUND, planned
    from dsconfig.planner.plan import Status

    document = options.load(file, overrides)
    made = planned(document, facts, runtime or "dsengine", deepspeed_version)
    say_idle_flags(made.effective, facts)
    if output is not None:
        from dsconfig.commands.writing import write

        write(output, made.to_json() + "\n")
    if simulate:
        show_simulation(made, facts, output_format)
    elif output_format == "json":
        typer.echo(made.to_json())
    else:
        show(made)
    if any(row.status is Status.REFUSED for row in made.coverage):
        raise typer.Exit(FOUND)


def show(made: "Plan") -> None:
    """Print the plan for people."""
    from dsconfig.commands.console import console
    from dsconfig.commands.plan_tables import coverage_table, summary_table, units_table

    out = console()
    out.print(summary_table(made))
    if made.units:
        out.print(units_table(made))
    out.print(coverage_table(made))


def show_simulation(made: "Plan", facts: "Facts", output_format: str) -> None:
    """Run the engine's own code on fake tensors and print what it would hold and send."""
    from dsconfig.commands.errors import UsageError

    try:
        import dsengine
    except ImportError:
        raise UsageError("--simulate needs torch: pip install 'dsconfig-zero[engine]'") from None
    import json

    from dsconfig.commands.console import console
    from dsconfig.commands.plan_tables import simulation_table

    if made.effective.optimizer is None:
        raise UsageError("--simulate: a step needs an optimizer: --set optimizer.type=AdamW")
    try:
        kind = facts.device.kind if facts.device else "cuda"
        result = dsengine.simulate(made, facts.model, device=kind)
    except ValueError as error:
        raise UsageError(f"--simulate: {error}") from None
    if output_format == "json":
        typer.echo(json.dumps(result, indent=2))
    else:
        zero = made.effective.zero
        offloads = bool(zero.offload_optimizer or zero.offload_param)
        console().print(simulation_table(result, offloads=offloads))
