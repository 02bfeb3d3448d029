"""Terminal output of ``tune``: the fastest candidate, then why each other one was rejected."""

from typing import TYPE_CHECKING

from dsconfig.commands.estimate_tables import model_label, print_host
from dsconfig.commands.printing import print_text
from dsconfig.commands.text_table import TextTable, colored_verdict, paragraph
from dsconfig.cost.divisions import described
from dsconfig.mesh import UNDIVIDED
from dsconfig.project import verdict as verdicts
from dsconfig.report.sizes import counted, in_gib

if TYPE_CHECKING:
    from dsconfig.cost.search_space import Candidate
    from dsconfig.cost.step_time import StepTime
    from dsconfig.cost.tuning import Ranking
    from dsconfig.facts import Facts
    from dsconfig.project.inference import TargetProgram


def search_verdict(best: "Candidate") -> str:
    """Return the verdict of the search."""
    if best.reason:
        return f"Nothing fits. Closest: {best.label}: {best.reason}."
    return f"Fastest that fits: {best.label}"


def print_candidates(
    candidates: "tuple[Candidate, ...]", most: int | None, facts: "Facts", program: "TargetProgram"
) -> None:
    """Print the fastest candidate, then up to ``most`` others at the same parallel degrees, with
    the reason each was rejected."""
    best = candidates[0]
    peak = facts.device.tflops_16bit if facts.device else None
    option, time = best.option, best.time
    print_text(f"{paragraph(_search_heading(best, facts))}\n{paragraph(program.headline)}\n")
    print_text(colored_verdict(paragraph(search_verdict(best))))
    if not best.reason:
        rate = _rate_of(time, peak)
        share = f", {rate[1]} MFU" if rate[1] != "-" else ""
        print_text(paragraph(verdicts.verdict(option, facts)))
        print_host(option, facts)
        print_text(
            paragraph(
                f"{rate[0]} tokens/s per GPU{share}, {time.seconds:.2f} s per step of "
                f"{time.samples} samples; modeled from FLOPs, links and PCIe for ranking, not a "
                "guarantee."
            )
        )
    divided = f" at {described(best.degrees)}" if best.degrees != UNDIVIDED else ""
    heading = f"Candidates{divided}, each with its largest micro batch that fits (memory in GiB)"
    if not facts.training or facts.training.global_batch_size is None:
        heading += "; specify --global-batch to compare equal steps"
    print_text(f"\n{paragraph(heading)}")
    table = TextTable(">tokens/s/GPU", ">MFU", ">GPU", ">host", "config")
    groups = _grouped(tuple(each for each in candidates if each.degrees == best.degrees))
    for group in groups[:most]:
        first = group[0]
        stages = " or ".join(str(candidate.choice.stage) for candidate in group)
        table.add_row(
            *_cells(first, peak),
            f"stage {stages}{first.choice.tiers}, {first.run}: {first.reason or 'fastest'}",
            bold=not first.reason,
        )
    print_text(str(table))
    if most is not None and len(groups) > most:
        print_text(f"{len(groups) - most} more: --all lists them")


def print_degrees(ranking: "Ranking") -> None:
    """Print why each other combination of parallel degrees was not chosen, equal reasons
    together. Nothing if none was tried."""
    if not _at_other_degrees(ranking.candidates):
        return
    reasons: dict[str, list[str]] = {}
    for candidate in _at_other_degrees(ranking.candidates):
        label = f"{described(candidate.degrees)}, {candidate.choice.label}"
        reasons.setdefault(candidate.reason, []).append(label)
    for each in ranking.rejected:
        reasons.setdefault(each.reason, []).append(each.label)
    print_text("\nOther parallel degrees")
    for reason, labels in reasons.items():
        print_text(paragraph(f"{'; '.join(labels)}: {reason}", indent="    ", first="  "))


def _at_other_degrees(candidates: "tuple[Candidate, ...]") -> "list[Candidate]":
    return [each for each in candidates if each.degrees != candidates[0].degrees]


def _grouped(candidates: "tuple[Candidate, ...]") -> "list[list[Candidate]]":
    """Group stages with identical numbers; keeps the order of the candidates."""
    groups: dict[tuple[str, ...], list[Candidate]] = {}
    for candidate in candidates:
        choice, fits = candidate.choice, str(candidate.verdict.fits)
        key = (*_cells(candidate, 1.0), choice.tiers, candidate.run, fits)
        groups.setdefault(key, []).append(candidate)
    return list(groups.values())


def _cells(candidate: "Candidate", peak_tflops: float | None) -> tuple[str, str, str, str]:
    option = candidate.option
    host = in_gib(option.host.peak_bytes, 0) if option.host.peak_bytes else "-"
    return (*_rate_of(candidate.time, peak_tflops), in_gib(option.device.needed_bytes, 1), host)


def _search_heading(best: "Candidate", facts: "Facts") -> str:
    model, device = facts.model, facts.device
    name = model_label(model.name, model.parameters) if model else "a model"
    gpus = facts.world_size or 1
    devices = f"{gpus} x {device.name}" if device else counted(gpus, "GPU")
    tokens = facts.training.sequence_length if facts.training else None
    precision = best.effective.numerics.precision
    return f"{name} on {devices}, {tokens or 0:,} tokens per sample, {precision}"


def _rate_of(time: "StepTime", peak_tflops: float | None) -> tuple[str, str]:
    share = time.mfu(peak_tflops * 1e12 if peak_tflops else None)
    return f"{time.tokens_per_second:,.0f}", "-" if share is None else f"{share:.0%}"
