"""``dsconfig diff``: compare two configs, or one config under two releases, by meaning."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsconfig import examination
from dsconfig.commands import options
from dsconfig.commands.notes import note
from dsconfig.commands.printing import print_json, print_text
from dsconfig.commands.writing import write
from dsconfig.facts.request import FactsRequest, flag_of
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project import inference
from dsconfig.project.errors import UsageError, usage
from dsconfig.report import Effect
from dsconfig.source.pointer import is_block

with lazy_imports():
    from dsconfig.commands import diff_comment, prepare, text_table
    from dsconfig.comparison import differences, upgrades
    from dsconfig.project import pinning, run_summary


if TYPE_CHECKING:
    from dsconfig.comparison.differences import Change
    from dsconfig.comparison.upgrades import UpgradeChange
    from dsconfig.runtimes.base import Runtime
    from dsconfig.schema.version import Version
    from dsconfig.source import Document


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="Config file (- for stdin).")],
    b: Annotated[
        str | None, typer.Argument(metavar="[B]", help="Config file to compare with A.")
    ] = None,
    from_version: Annotated[
        str | None, typer.Option(metavar="X.Y.Z", help="DeepSpeed release in use.")
    ] = None,
    to_version: Annotated[
        str | None,
        typer.Option(
            metavar="X.Y.Z", help="DeepSpeed release to upgrade to (default: the target release)."
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="PATH=VALUE", help="Override a key of A, but not of B (repeatable)."
        ),
    ] = None,
    runtime: options.RuntimeName = None,
    *,
    pin: Annotated[
        bool,
        typer.Option(
            "--pin", help="Write a config that keeps its current meaning under --to-version."
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write the output of --pin here (default: stdout).",
        ),
    ] = None,
    request: FactsRequest,
    output_format: Annotated[str, options.output_format("full", "json", options.MARKDOWN)] = "full",
) -> None:
    """Compare configs by meaning: with defaults, aliases and renames resolved.

    With two files, print the differences in meaning; if the facts of the run are known, what "auto"
    becomes is compared. With one file and --from-version, print what the upgrade of DeepSpeed
    changes for it; --pin writes a config that keeps its meaning, and prints to stderr what cannot
    be kept.

    --output-format markdown writes a comment for a pull request: what the change does to training,
    memory and step time. Model and GPUs come from flags or the project file.

    Exit code 1 if there are differences, or if --pin cannot write a config that the target accepts.
    """
    if b is None and from_version is None:
        raise UsageError("specify a second file, or --from-version to compare two releases")
    if pin and b is not None:
        raise UsageError("--pin requires one file and --from-version")
    if output is not None and not pin:
        raise UsageError("-o requires --pin")
    if request.stated and b is None and output_format != options.MARKDOWN:
        named = ", ".join(map(flag_of, request.stated))
        raise UsageError(f"{named}: only with two files, or with --output-format markdown")
    before = inference.release_of(from_version, option="--from-version")
    if to_version is not None:
        inference.release_of(to_version, option="--to-version")
    elif b is not None:
        to_version = from_version
    first = options.load(a, overrides)
    mapping = _mapping(first)
    changes: list[Change] | list[UpgradeChange]
    if b is not None:
        second = options.load(b)
        # A config from stdin is another version of B.
        origin, target = _targets_of_both(
            runtime, to_version, (first, b if a == "-" else a), (second, b)
        )
        after = target.runtime.version
        was = after if from_version is None else before
        old, new = mapping, _mapping(second)
        if output_format != options.MARKDOWN:
            filled_old = _filled(first, origin.runtime, a, request)
            filled_new = _filled(second, target.runtime, b, request)
            if filled_old is not None and filled_new is not None:
                old, new = filled_old, filled_new
        changes = differences.between_configs(old, new, was, after)
    else:
        second = first
        origin = inference.target_program(runtime, str(before), document=first, source=a)
        target = inference.target_program(runtime, to_version, document=first, source=a)
        if pin:
            _pin(first, before, target, output)
            return
        note(text_table.paragraph(target.headline))
        changes = _upgrade_changes(first, before, target)
    if output_format == options.MARKDOWN:
        file = a if b is None else b
        facts = options.facts_from(request, file)
        old, new = (
            run_summary.summarize(document, options.completed(facts, document), program, file)
            for document, program in ((first, origin), (second, target))
        )
        write(None, diff_comment.comment(old, new, changes))
    else:
        if output_format == "json":
            print_json(as_data(changes, target))
        else:
            print_text(text_table.fitted(as_text(changes)))
    if changes:
        raise typer.Exit(1)


def _targets_of_both(
    runtime: str | None, version: str | None, *files: "tuple[Document, str]"
) -> "list[inference.TargetProgram]":
    """Print the target program of both files, or that of each, and return them."""
    targets = [
        inference.target_program(runtime, version, document=document, source=source)
        for document, source in files
    ]
    if len({target.headline for target in targets}) == 1:
        note(text_table.paragraph(targets[0].headline))
    else:
        for (document, _), target in zip(files, targets, strict=True):
            note(text_table.paragraph(f"{document.name}: {target.headline}"))
    return targets


def _upgrade_changes(
    document: "Document", before: "Version", target: "inference.TargetProgram"
) -> "list[UpgradeChange]":
    return upgrades.upgrade_changes(
        document,
        before,
        target.runtime.version,
        lambda version: examination.findings(document, None, target.runtime.at(version), version),
    )


def _pin(
    first: "Document",
    before: "Version",
    target: "inference.TargetProgram",
    output: Path | None,
) -> None:
    with usage("--pin"):
        pinned = pinning.pinned(first, before, target.runtime.version)
    program = target.runtime
    refused = examination.findings(pinned, None, program, program.version).refusals
    prepare.show_errors(pinned, refused)  # exits if there is one
    write(output, pinned.text or "")
    for change in _upgrade_changes(pinned, before, target):
        print_text(f"cannot be kept: {change}", err=True)


def _mapping(document: "Document") -> dict[str, Any]:
    value: object = document.value
    errors = [finding for finding in document.diagnostics if finding.effect is Effect.REFUSED]
    if not is_block(value) or errors:
        reason = errors[0].message if errors else "it is not an object"
        raise UsageError(f"{document.name} cannot be compared: {reason}")
    return value


def _filled(
    document: "Document", program: "Runtime", file: str, request: FactsRequest
) -> dict[str, Any] | None:
    """Return a config with what "auto" becomes; None if no facts are known, or it is refused."""
    if not request.stated and not document.container:
        return None
    facts = options.completed(options.facts_from(request, file), document)
    result = examination.resolution(document, facts, program)
    missing = examination.missing_facts(result)
    if missing and not request.stated:
        return None
    if missing:
        raise UsageError(f"{document.name}: {'; '.join(missing)}")
    if result.refusals:
        note(f"note: the files are compared as written: {result.refusals[0].message}")
        return None
    return result.config


def as_text(changes: Iterable["Change | UpgradeChange"]) -> str:
    """Return one change per line."""
    return "\n".join(map(str, changes)) or "no differences in meaning"


def as_data(
    changes: Iterable["Change | UpgradeChange"], target: "inference.TargetProgram"
) -> dict[str, Any]:
    """Return the changes with the target program, of the second file if there are two."""
    listed = [asdict(change) for change in changes]
    return {"format_version": "1.0", **target.data, "changes": listed}
