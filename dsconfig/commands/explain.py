"""``dsconfig explain KEY|CODE``: what a key means, or what a rule says."""

import json
import re
from typing import Annotated

import typer

from dsconfig.commands import options
from dsconfig.commands.errors import UsageError
from dsconfig.lazily import lazily

with lazily():
    from dsconfig.checks import registry
    from dsconfig.commands.explained import key as keys
    from dsconfig.commands.explained import names
    from dsconfig.commands.explained import rule as rules
    from dsconfig.resolver import codes

What = Annotated[
    str,
    typer.Argument(
        metavar="KEY|CODE", help="zero_optimization.overlap_comm, overlap_comm, DSC401, ..."
    ),
]
_CODE = re.compile(r"DSC\d{3}", re.IGNORECASE)


def explain(what: What, output_format: options.FullOrJson = "full") -> None:
    """Explain a key (type, default by release, memory, "auto", relations) or a rule by its code."""
    as_json = output_format == "json"
    if _CODE.fullmatch(what):
        _explain_rule(what.upper(), as_json=as_json)
    else:
        _explain_key(what, as_json=as_json)


def _explain_rule(code: str, *, as_json: bool) -> None:
    rule = registry.rule_of(code)
    if rule is None:
        _explain_finding(code, as_json=as_json)
        return
    typer.echo(_dump({"rule": rules.rule_as_data(rule)}) if as_json else rules.rule_as_text(rule))


def _explain_finding(code: str, *, as_json: bool) -> None:
    """What ``resolve`` finds and ``validate`` cannot: it depends on facts and programs."""
    if code not in codes.CODES:
        raise UsageError(f"there is no rule {code}")
    typer.echo(
        _dump({"finding": rules.finding_as_data(code)}) if as_json else rules.finding_as_text(code)
    )


def _explain_key(name: str, *, as_json: bool) -> None:
    found = names.keys_named(name)
    if as_json:
        typer.echo(_dump({"keys": [keys.key_as_data(key) for key in found]}))
    elif len(found) == 1:
        typer.echo(keys.key_as_text(found[0]))
    else:
        typer.echo(f"{name} is the name of {len(found)} keys:\n")
        for key in found:
            typer.echo(f"  {key.path}\n      {key.doc}")


def _dump(data: dict[str, object]) -> str:
    return json.dumps({"format_version": "1.0", **data}, indent=2, ensure_ascii=False)
