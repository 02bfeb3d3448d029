"""``dsconfig tune``: find the fastest config that fits, and why each other one was rejected."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsconfig.commands import options
from dsconfig.commands.notes import note
from dsconfig.commands.printing import print_json, print_text
from dsconfig.commands.progress import progress
from dsconfig.commands.writing import write
from dsconfig.facts.request import FactsRequest
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project import inference
from dsconfig.project.errors import usage
from dsconfig.runtimes.base import format_instructions

with lazy_imports():
    from dsconfig.commands import fact_notes, host_memory, screen, text_table
    from dsconfig.commands import tune_tables as tables
    from dsconfig.cost import rendering, tuning, workload
    from dsconfig.project import program_file, verdict

if TYPE_CHECKING:
    from dsconfig.cost.tuning import Ranking
    from dsconfig.facts import Facts

SHOWN = 10


def tune(
    *,
    request: FactsRequest,
    runtime: options.RuntimeName = None,
    deepspeed_version: options.DeepSpeedVersion = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="List all candidates (default: 10).")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Write the fastest config (- for stdout)."
        ),
    ] = None,
    output_format: options.FullOrJson = "full",
) -> None:
    """Rank ZeRO stage, offload and recomputation by estimated throughput.

    If the model does not fit without offload, parallel degrees are searched as well: those that
    the target program executes. Each candidate uses the largest micro batch that fits. With
    --runtime dsengine, the fastest one is also the choice of init and, at its degrees, of resolve.

    Exit code 1 if nothing fits.
    """
    facts = options.facts_from(request, None)
    fact_notes.note_no_master_weights(facts)
    target = inference.target_program(runtime, deepspeed_version, facts=facts)
    fact_notes.note_misspelled_arguments(facts)
    program = target.runtime
    facts = options.with_this_machine(facts)
    with usage():
        workload.require_facts(facts, device=True, sequence_length=True)
    with usage(), progress("Searching configurations"):
        ranking = tuning.ranking(facts, runtime=program)
    candidates = ranking.candidates
    fits = bool(candidates) and not candidates[0].reason
    if fits and output is not None:
        winner = program_file.of_candidate(candidates[0], program)
        if str(output) == "-" and winner.steps:
            note(f"also set {format_instructions(winner.steps)}")
        write(output, json.dumps(winner.config, indent=4) + "\n")
    if output is None or str(output) != "-":
        _show(ranking, show_all, output_format, facts, target)
    host_is_known = facts.host is not None and facts.host.memory_bytes is not None
    if fits and candidates[0].option.host.bytes and not host_is_known:
        note(host_memory.ASSUMED)
    if not fits:
        print_text(
            text_table.paragraph(f"nothing fits; try {verdict.flags_to_try(facts)}"), err=True
        )
        raise typer.Exit(1)


def _show(
    ranking: "Ranking",
    show_all: bool,
    output_format: str,
    facts: "Facts",
    program: inference.TargetProgram,
) -> None:
    if output_format == "json":
        data = rendering.candidates_data(*ranking)
        print_json({**data, **program.data})
        return
    best = ranking.candidates[0]
    with screen.ending_with(tables.search_verdict(best)):
        tables.print_candidates(ranking.candidates, None if show_all else SHOWN, facts, program)
        tables.print_degrees(ranking)
    if not best.reason:
        winner = program_file.of_candidate(best, program.runtime)
        if winner.steps:
            print_text(
                text_table.paragraph(
                    f"Also set {format_instructions(winner.steps)} (not part of the config file)."
                )
            )
