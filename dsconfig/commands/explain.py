"""``dsconfig explain KEY|CODE``: explain a config key or a rule."""

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsconfig.commands import options
from dsconfig.commands.errors import UsageError
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report.diagnostic import RULE_PAGES

with lazy_imports():
    from dsconfig.checks import page, registry
    from dsconfig.commands import key_reference as keys
    from dsconfig.commands import text_table
    from dsconfig.resolver import codes

if TYPE_CHECKING:
    from dsconfig.checks.rule import Rule

_CODE = re.compile(r"DSC\d{3}", re.IGNORECASE)


def explain(
    what: Annotated[
        str,
        typer.Argument(
            metavar="KEY|CODE|RULE",
            help="Key, rule code or rule name, e.g. overlap_comm or DSC401.",
        ),
    ],
    output_format: options.FullOrJson = "full",
) -> None:
    """Explain a config key (type, defaults, memory, "auto") or a rule."""
    as_json = output_format == "json"
    if _CODE.fullmatch(what):
        _explain_rule(what.upper(), as_json=as_json)
    elif "-" in what and (code := _code_of(what)):
        _explain_rule(code, as_json=as_json)
    else:
        _explain_key(what, as_json=as_json)


def _code_of(name: str) -> str | None:
    """Return the code of a rule or resolver finding, by name."""
    rule = registry.rule_of(name)
    if rule is not None:
        return rule.code
    return next((code for code, found in codes.CODES.items() if found.name == name.lower()), None)


def _explain_rule(code: str, *, as_json: bool) -> None:
    """Print the page of a rule of ``validate`` or a finding of ``resolve``."""
    rule = registry.rule_of(code)
    if rule is not None:
        data, text = {"rule": rule_as_data(rule)}, page.page(rule)
    elif code in codes.CODES:
        data, text = {"finding": finding_as_data(code)}, page.finding_page(code)
    else:
        raise UsageError(f"unknown rule {code}")
    typer.echo(_dump(data) if as_json else text_table.fitted(text.rstrip("\n")))


def rule_as_data(rule: "Rule") -> dict[str, Any]:
    """Return the JSON form of a rule."""
    return {
        "code": rule.code,
        "name": rule.name,
        "effect": rule.effect,
        "severity": rule.effect.severity,
        "late": rule.late,
        "doc": rule.doc,
        "bad": rule.bad.config,
        "good": rule.good.config,
        "url": f"{RULE_PAGES}/{rule.code}",
    }


def finding_as_data(code: str) -> dict[str, Any]:
    """Return the JSON form of a resolver finding."""
    found = codes.CODES[code]
    config, flags = found.example or (None, None)
    return {
        "code": code,
        "name": found.name,
        "effect": found.effect,
        "severity": found.effect.severity,
        "doc": found.doc,
        "help": found.remedy,
        "example": config,
        "flags": flags,
        "url": f"{RULE_PAGES}/{code}",
    }


def _explain_key(name: str, *, as_json: bool) -> None:
    found = keys.keys_named(name)
    if as_json:
        typer.echo(_dump({"keys": [keys.key_as_data(key) for key in found]}))
    elif len(found) == 1:
        typer.echo(text_table.fitted(keys.key_as_text(found[0])))
    else:
        typer.echo(f"{len(found)} keys are named {name}:\n")
        for key in found:
            typer.echo(text_table.fitted(f"  {key.path}\n      {key.doc}"))


def _dump(data: Mapping[str, Any]) -> str:
    return json.dumps({"format_version": "1.0", **data}, indent=2, ensure_ascii=False)
