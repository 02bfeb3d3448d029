"""The interface of the browser page: a request and its answer as JSON text.

The page runs this module in Pyodide; nothing here depends on a browser. A request names its
``kind`` and has the fields of :class:`Request`. An answer is an object; if the request is invalid
it has ``error``, in the words of the command line.
"""

import json
from dataclasses import asdict
from functools import cached_property
from itertools import islice
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any

from dsconfig import __version__
from dsconfig.cost import estimator, plots, rendering, tuning, usual, workload
from dsconfig.editor import actions
from dsconfig.editor.actions import ActionKind
from dsconfig.editor.open_file import OpenFile
from dsconfig.facts import Facts, catalogue, embedded_facts, gathering
from dsconfig.facts.naming import Surface, read_on
from dsconfig.facts.request import FactsRequest
from dsconfig.project import (
    accepted_changes,
    assumed_facts,
    changes,
    despite_errors,
    inference,
    program_file,
    verdict,
)
from dsconfig.project.errors import UsageError, usage
from dsconfig.project.validator import Validator
from dsconfig.report.render import as_json
from dsconfig.resolver.resolution import finite, ledger_data
from dsconfig.runtimes import base as runtimes
from dsconfig.schema import version as releases
from dsconfig.source.edit import apply_fixes
from dsconfig.source.positions import LineIndex
from dsconfig.source.reading import read_text

if TYPE_CHECKING:
    from dsconfig.cost.estimate import Estimate
    from dsconfig.runtimes.effective import Effective

Data = dict[str, Any]
LARGEST_ANSWER = 4_000_000
"""Characters of the texts after fixes in one answer; later findings are returned without a fix."""


class Request:
    """A request of the page: a text, facts about the run, and the target program.

    ``flags`` are arguments of ``dsconfig.gather``.
    ``model_config`` is the text of a config.json and replaces the flag ``model``.
    """

    def __init__(self, data: Data) -> None:
        self.kind: str = data["kind"]
        self.text: str = data.get("text", "")
        self.name: str = data.get("name", "ds_config.json")
        self.flags: Data = data.get("flags", {})
        self.runtime: str | None = data.get("runtime")
        self.version: str | None = data.get("version")
        self.model_config: str = data.get("model_config", "")

    @cached_property
    def facts(self) -> "Facts | None":
        """The facts of the flags; None if there are none. Raises UsageError."""
        flags = dict(self.flags)
        if self.model_config:
            path = Path(gettempdir()) / "config.json"
            path.write_text(self.model_config, encoding="utf-8", errors="backslashreplace")
            flags["model"] = str(path)
        with usage():
            return gathering.facts_of(FactsRequest(**flags)) if flags else None

    @cached_property
    def file(self) -> OpenFile:
        """The checked text. Raises UsageError."""
        document = read_text(self.text, self.name)
        validator = Validator(facts=self.facts, runtime=self.runtime, version=self.version)
        validator = validator.with_program(document, self.name)
        return OpenFile(document, validator, validator.report(document))


def answer(request: str) -> str:
    """Return the answer to a request, both as JSON text."""
    parsed = Request(json.loads(request))
    with read_on(Surface.PAGE):
        try:
            data = _ANSWERS[parsed.kind](parsed)
        except UsageError as error:
            data = {"error": str(error)}
    return json.dumps(finite(data), default=str)


def _choices(_: Request) -> Data:
    """Return what the form offers."""
    return {
        "dsconfig": __version__,
        "models": [entry["name"] for entry in catalogue.models()],
        "devices": [
            {"name": gpu["name"], "memory_bytes": gpu["memory_bytes_usable"]}
            for gpu in catalogue.gpus()
        ],
        "runtimes": list(runtimes.NAMES),
        "releases": [str(release) for release in reversed(releases.PUBLISHED)],
    }


def _check(request: Request) -> Data:
    """Return findings with fixes, resolved values and, if the model is known, the estimate."""
    file = request.file
    target, resolution = file.checked.target, file.resolution
    return {
        "report": as_json.as_data([file.checked]),
        "target": target.described if target is not None else "",
        "fixes": _fixes(file),
        "resolved": list(map(ledger_data, resolution.ledger if resolution is not None else ())),
        "estimate": _estimate(request),
    }


def _fixes(file: OpenFile) -> list[Data]:
    """Return each fix with the number of its finding and the text after it."""
    text = file.document.text or ""
    number = {id(each): place for place, each in enumerate(file.checked.report.diagnostics)}
    found = actions.actions(file, LineIndex(text).range(0, len(text)))
    most = max(1, LARGEST_ANSWER // max(1, len(text)))
    return [
        {
            "finding": number[id(action.finding)],
            "title": action.title,
            "safe": action.is_preferred,
            "text": apply_fixes(text, [action.finding.fix])[0],
        }
        for action in islice(found, most)
        if action.kind is ActionKind.FIX and action.finding and action.finding.fix
    ]


def _fix_all(request: Request) -> Data:
    """Return the text after every safe fix."""
    fixed = actions.fix_all(request.file)
    return {"text": fixed[0].edits[0].content if fixed else request.text}


class _Estimated:
    """A file with its estimate, as ``dsconfig estimate FILE`` makes it. Raises UsageError."""

    def __init__(self, request: Request) -> None:
        document, facts = request.file.document, request.facts or Facts()
        if document.container:
            facts = embedded_facts.complete(facts, document)
        self.program = request.file.program
        facts, self.notes = assumed_facts.for_estimate(document, facts, self.program)
        with usage():
            workload.require_facts(facts)
        self.document, self.facts = document, facts
        concrete = despite_errors.concrete(document, facts, self.program)
        self.errors = concrete.errors
        self.notes += concrete.notes
        self.effective: Effective | None = concrete.effective
        self.estimate: Estimate | None = None
        if self.effective is not None:
            with usage():
                self.estimate = estimator.estimate(self.effective, facts, runtime=self.program)


def _estimate(request: Request) -> Data | None:
    """Return the estimate, its verdict and the GPUs that fit, or why there is none."""
    facts = request.facts
    if facts is None or (facts.model is None and facts.outline is None):
        return None
    try:
        made = _Estimated(request)
    except UsageError as error:
        return {"error": str(error)}
    if made.estimate is None:
        return {"error": "no estimate: the config cannot be read or has no valid stage"}
    (option,) = made.estimate.options
    precision = str(made.estimate.inputs["precision"])
    devices = list(usual.known_devices(precision))
    return {
        **rendering.as_data(made.estimate),
        "verdict": verdict.overall(made.estimate, made.facts, is_config=True),
        "fits": not verdict.not_fitting(option, made.facts),
        "prevents_start": despite_errors.prevents_start(made.errors),
        "label": rendering.label(option),
        "notes": made.notes,
        "beside": option.device.beside_peak,
        "colors": plots.component_colors(made.estimate.options),
        "cards": [asdict(fit) for fit in estimator.fits_on(devices, option.device)],
    }


def _changes(request: Request) -> Data:
    """Return changes that make the config fit, each with the text after it."""
    made = _Estimated(request)
    if made.effective is None:
        return {"changes": []}
    found = accepted_changes.cheapest_changes(
        made.effective, made.facts, made.program, made.document
    )
    listed = changes.change_data(found, made.program, made.document)
    for each, change in zip(listed, found, strict=True):
        each["text"] = changes.changed(change, made.program, made.document).text
    return {"changes": listed}


def _tune(request: Request) -> Data:
    """Return the configurations that ``dsconfig tune`` ranks, each as a file."""
    facts = request.facts or Facts()
    program = inference.target_program(request.runtime, request.version, facts=facts).runtime
    with usage():
        workload.require_facts(facts, device=True, sequence_length=True)
    with usage():
        ranking = tuning.ranking(facts, runtime=program)
    data = rendering.candidates_data(*ranking)
    for each, candidate in zip(data["candidates"], ranking.candidates, strict=True):
        file = program_file.of_candidate(candidate, program)
        each["text"] = json.dumps(file.config, indent=2) + "\n"
        each["steps"] = [step._asdict() for step in file.steps]
    return data


_ANSWERS = {
    "choices": _choices,
    "check": _check,
    "fix_all": _fix_all,
    "changes": _changes,
    "tune": _tune,
}
