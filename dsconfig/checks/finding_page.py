"""Pages of what ``dsconfig resolve`` finds, beside those of the rules."""

import json
import textwrap

from dsconfig.resolver.codes import CODES

WIDTH = 96


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
