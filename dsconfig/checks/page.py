"""Pages: one per code, of a rule or of what ``dsconfig resolve`` finds, and an index."""

import json
import textwrap
from collections.abc import Iterator

from dsconfig.checks.examples import flags_of, judge
from dsconfig.checks.registry import FAMILIES, rules
from dsconfig.checks.rule import Example, Rule
from dsconfig.report import Effect
from dsconfig.resolver.codes import CODES
from dsconfig.runtimes.base import every_runtime
from dsconfig.schema.markers import integral

WIDTH = 96


def page(rule: Rule) -> str:
    """The page of a rule, in Markdown."""
    effect = rule.effect
    judged = [runtime.name for runtime in every_runtime() if rule.applies_to(runtime)]
    when = ", after the file was read" if rule.late and effect is Effect.REFUSED else ""
    lines = [
        f"# {rule.code} {rule.name}",
        "",
        rule.doc,
        "",
        f"- Effect: `{effect}`, {effect.meaning}{when}",
        *(f"- Or: `{other}`, {other.meaning}" for other in rule.also),
        f"- Severity: {' or '.join(dict.fromkeys(each.severity for each in (effect, *rule.also)))}",
        f"- Judged for: {', '.join(judged)}",
        "",
        "## Bad",
        "",
        *_shown(rule.bad),
        "",
        *_said(rule),
        "",
        "## Good",
        "",
        *_shown(rule.good),
    ]
    return "\n".join(lines) + "\n"


def _shown(example: Example) -> Iterator[str]:
    yield "```json" if _is_json(example.config) else "```"
    yield _pretty(example.config)
    yield "```"
    if example.training_args:
        yield from ("", "`args.json`:", "", "```json")
        yield json.dumps(example.training_args, indent=2)
        yield "```"
    flags = flags_of(example)
    if flags:
        yield ""
        yield f"`dsconfig validate {example.name} {flags}`"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _pretty(text: str) -> str:
    """Strict JSON over several lines; anything else as it is, for its form is the point."""
    if not _is_json(text) or "\n" in text or text.count('"train_batch_size"') > 1:
        return text.strip("\n")
    # 1e9 is 1000000000 rather than 1000000000.0.
    return json.dumps(json.loads(text, parse_float=lambda each: integral(float(each))), indent=2)


def _said(rule: Rule) -> Iterator[str]:
    """What the rule says of its bad example."""
    for found in judge(rule.bad):
        if found.code == rule.code:
            place = found.pointer or "the whole file"
            yield f"> `{place}`: {found.message}."
            if found.help:
                yield ">"
                yield f"> help: {found.help}"
            return


def finding_page(code: str) -> str:
    """The page of a code of the resolver, in Markdown."""
    found = CODES[code]
    lines = [
        f"# {code} {found.name}",
        "",
        textwrap.fill(found.doc, WIDTH),
        "",
        f"- Effect: `{found.effect}`, {found.effect.meaning}",
        f"- Severity: {found.effect.severity}",
        "- Found by: `dsconfig resolve`, and by estimate, tune, plan and run, which resolve first",
        "",
        "## What to do",
        "",
        textwrap.fill(found.remedy, WIDTH),
    ]
    if found.example is not None:
        config, flags = found.example
        pretty = json.dumps(json.loads(config), indent=2)
        lines += ["", "## Example", "", "```json", pretty, "```", ""]
        lines += [f"`dsconfig resolve ds.json {flags}`"]
    return "\n".join(lines) + "\n"


def index() -> str:
    """The table of all rules, by family."""
    lines = ["# Rules", "", "Written by `make generate`.", ""]
    for digit, family in FAMILIES.items():
        chosen = [rule for code, rule in rules().items() if code[3] == digit]
        if not chosen:
            continue
        lines += [f"## {digit}xx {family}", "", "| Code | Name | Effect | |", "|---|---|---|---|"]
        for rule in chosen:
            first = rule.doc.split("\n\n")[0].replace("\n", " ")
            link = f"[{rule.code}]({rule.code}.md)"
            lines.append(f"| {link} | {rule.name} | {rule.effect.value} | {first} |")
        lines.append("")
    lines += [
        "## What `dsconfig resolve` finds",
        "",
        "| Code | Name | Effect | |",
        "|---|---|---|---|",
    ]
    for code, found in CODES.items():
        first = found.doc.partition(". ")[0].rstrip(".") + "."
        lines.append(f"| [{code}]({code}.md) | {found.name} | {found.effect} | {first} |")
    return "\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """Every page by the name of its file."""
    of_rules = {f"{code}.md": page(rule) for code, rule in rules().items()}
    of_findings = {f"{code}.md": finding_page(code) for code in CODES}
    return {"README.md": index()} | of_rules | of_findings
