"""``dsconfig plan FILE``: every decision of a training run with dsengine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsconfig.commands import completion, notes, options, prepare
from dsconfig.commands.printing import print_json, print_text
from dsconfig.commands.progress import progress
from dsconfig.commands.writing import write
from dsconfig.facts.request import FactsRequest
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project import inference
from dsconfig.project.errors import UsageError, usage

with lazy_imports():
    from dsconfig.commands import fact_notes, plan_tables, screen, text_table
    from dsconfig.planner import plan as plans
    from dsconfig.runtimes import base

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.planner.plan import Plan

Out = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the plan as JSON.")
]
PlanRuntime = Annotated[
    str | None,
    typer.Option(
        metavar="PROGRAM",
        autocompletion=completion.runtimes,
        help="Program that executes the plan, or whose engine is planned for: dsengine, deepspeed, "
        "transformers or accelerate (default: dsengine).",
    ),
]
Simulate = Annotated[
    bool,
    typer.Option("--simulate", help="Dry-run the engine on fake tensors."),
]


def plan(
    file: prepare.ConfigOrPlan,
    *,
    overrides: options.Overrides = None,
    runtime: PlanRuntime = None,
    deepspeed_version: options.DeepSpeedVersion = None,
    simulate: Simulate = False,
    fail_if_oom: options.FailIfOom = False,
    output: Out = None,
    output_format: options.FullOrJson = "full",
    request: FactsRequest,
) -> None:
    """Show the execution plan: ranks, units, offload, memory, traffic and keys.

    FILE may also be a plan written by `dsconfig plan ... -o plan.json`.

    Exit code 1 if the program would stop at the config, or with --fail-if-oom if it does not fit.
    """
    facts, plan = options.facts_from(request, file), prepare.plan_in(file)
    if plan is None:
        document = options.load(file, overrides, facts)
        facts = options.completed(facts, document)
        plan = prepare.planned(document, facts, runtime, deepspeed_version, form=output_format)
        target = inference.plan_target(runtime, deepspeed_version)
        fact_notes.note_ignored_flags(plan.effective, document, target.runtime, facts)
    else:
        target = inference.TargetProgram(base.runtime_of(plan.runtime))
        decided = {"set": overrides, "runtime": runtime, "deepspeed_version": deepspeed_version}
        # A dry run needs the model and the device, which a plan does not contain.
        prepare.reject_flags(file, decided, None if simulate else facts)
    if output is not None:
        write(output, plan.to_json() + "\n")
    if simulate:
        show_simulation(plan, facts, output_format)
    elif output_format == "json" and str(output) != "-":
        print_text(plan.to_json())
    elif str(output) != "-":  # otherwise it is on stdout already
        show(plan, facts, target)
    if plan_tables.does_not_fit(plan, facts):
        if fail_if_oom:
            raise typer.Exit(prepare.FOUND)
        notes.note(options.EXIT_0_ALTHOUGH_OOM)
    if any(row.status is plans.Status.REFUSED for row in plan.coverage):
        raise typer.Exit(prepare.FOUND)


def show(plan: "Plan", facts: "Facts", target: inference.TargetProgram) -> None:
    """Print the verdict, the target program and the decisions."""
    verdict = plan_tables.verdict(plan, facts)
    with screen.ending_with(verdict):
        print_text(text_table.colored_verdict(text_table.paragraph(verdict)))
        print_text(text_table.paragraph(target.headline))
        print_text(f"\n{plan_tables.summary(plan)}")
        for stage in plan.stages:
            if stage.units:
                print_text(f"\n{plan_tables.units_table(stage.units)}")
        print_text("\nkeys of the config")
        for line in plan_tables.coverage_lines(plan):
            print_text(line)


def show_simulation(plan: "Plan", facts: "Facts", output_format: str) -> None:
    """Run the engine on fake tensors; print peak memory and traffic."""
    try:
        import dsengine
    except ImportError:
        raise UsageError("--simulate requires torch: pip install 'dsconfig-zero[engine]'") from None
    if plan.effective.optimizer is None:
        raise UsageError("--simulate requires an optimizer: --set optimizer.type=AdamW")
    with usage("--simulate"), progress("Simulating a training step"):
        kind = facts.device.kind if facts.device else "cuda"
        result = dsengine.simulate(plan, facts.model, device=kind, base_weights=facts.base_weights)
    if output_format == "json":
        print_json(result)
    else:
        print_text(str(plan_tables.simulation_table(result)))
