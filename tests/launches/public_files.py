"""Compare the verdict on public files with what the installed programs do with them.

``tests/oracle/public_files.jsonl`` lists the files by repository, commit, path and hash, without
their content. ``python -m launches.public_files CLONES`` (with ``PYTHONPATH=tests``) reads them
from clones named ``OWNER+NAME`` in that folder, starts each, and prints what differs.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import yaml

import dsconfig
from dsconfig.facts.embedded_facts import trainer_arguments
from dsconfig.report import Effect
from launches import cases, live
from launches.cases import Launch
from replays.launches import compared

LISTED = Path(__file__).parents[1] / "oracle" / "public_files.jsonl"
MODEL = json.dumps({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2})
RANKS = 8
TAKEN = frozenset(
    {
        *("bf16", "fp16", "per_device_train_batch_size", "gradient_accumulation_steps"),
        *("learning_rate", "weight_decay", "warmup_steps", "max_grad_norm"),
        *("adam_beta1", "adam_beta2", "adam_epsilon"),
    }
)
"""Arguments of a trainer's YAML that are passed on: those that end up in a ds_config."""
Row = Mapping[str, str]


def rows() -> Iterator[Row]:
    yield from map(json.loads, LISTED.read_text("utf-8").splitlines())


def text_of(clones: Path, row: Row, path: str = "") -> str | None:
    """Return a file of the row's commit (default: its own), or None."""
    clone = clones / row["repository"].replace("/", "+", 1)
    clone = clone / "repo" if (clone / "repo").is_dir() else clone
    named = f"{row['commit']}:{path or row['path']}"
    command = ["git", "-C", str(clone), "show", named]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def differences(clones: Path) -> Iterator[str]:
    """Yield the files whose verdict, or resolved config, differs from the programs'."""
    for row in rows():
        text = text_of(clones, row)
        where = f"{row['repository']} {row['path']}"
        if text is None or hashlib.sha256(text.encode()).hexdigest() != row["sha256"]:
            yield f"{where}: not in the clone"
            continue
        with tempfile.TemporaryDirectory() as folder:
            wrong = difference(row, text, clones, Path(folder))
        if wrong:
            yield f"{where}: {wrong}"


def difference(row: Row, text: str, clones: Path, folder: Path) -> str:
    """Return what differs for one file; empty if nothing."""
    if row["read_by"] == "DeepSpeed":
        return "; ".join(filter(None, (_parsed_alike(text, ranks) for ranks in (2, RANKS))))
    make = {"accelerate": _accelerate, "transformers": _trainer}[row["read_by"]]
    case = make(row, text, clones)
    for name in case.files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    result = compared(case, live.outcome(case, folder), folder)
    return "" if result.agrees else f"{result.expected}; got {result.got}"


def _parsed_alike(text: str, ranks: int) -> str:
    loads = live._parsed(json.loads(text), ranks)["parsed"]
    report = dsconfig.validate(
        dsconfig.read(text, name="ds.json"), dsconfig.gather(gpus=ranks), runtime="deepspeed"
    )
    refusals = [
        found.code
        for found in report.diagnostics
        if found.effect is Effect.REFUSED and not found.late
    ]
    return "" if loads != bool(refusals) else f"{ranks} ranks: loads {loads}; got {refusals}"


def _accelerate(row: Row, text: str, clones: Path) -> Launch:
    content: dict[str, Any] = yaml.safe_load(text)
    files = {cases.MODEL: MODEL, cases.LAUNCH: text}
    name: str | None = (content.get("deepspeed_config") or {}).get("deepspeed_config_file")
    named = _beside(row, name, clones)
    if name and named:
        files[name] = named
    return Launch(row["path"], cases.ACCELERATE, content.get("num_processes", 1), files)


def _trainer(row: Row, text: str, clones: Path) -> Launch:
    content: dict[str, Any] = yaml.safe_load(text)
    named = content.get("deepspeed")
    arguments: dict[str, Any] = {"output_dir": "out", "report_to": "none", "max_steps": 1000}
    if named is None:
        config = text
        arguments |= _precision(content)
    else:
        config = json.dumps(named) if isinstance(named, dict) else _beside(row, named, clones)
        given = trainer_arguments(content)
        arguments |= {key: given[key] for key in TAKEN & given.keys()}
        if arguments.get("bf16") == "auto":
            arguments["bf16"] = True
    lines = {**arguments, "disable_tqdm": True, "deepspeed": cases.CONFIG}
    files = {cases.MODEL: MODEL, cases.CONFIG: config or "", cases.ARGUMENTS: yaml.safe_dump(lines)}
    return Launch(row["path"], cases.TRAINER, RANKS, files)


def _precision(config: Mapping[str, Any]) -> dict[str, bool]:
    """Return the argument that agrees with the file; bf16 if both precisions are "auto"."""
    switches = {
        block: cast("dict[str, Any]", config.get(block) or {}).get("enabled")
        for block in ("bf16", "fp16")
    }
    for value in (True, "auto"):
        chosen = [block for block, switch in switches.items() if switch == value]
        if chosen:
            return {chosen[0]: True}
    return {}


def _beside(row: Row, name: str | None, clones: Path) -> str | None:
    """Return the file of that name, relative to the repository or to the row's own file."""
    if not name:
        return None
    beside = str(Path(row["path"]).parent / name)
    return text_of(clones, row, name) or text_of(clones, row, beside)


if __name__ == "__main__":
    found = list(differences(Path(sys.argv[1])))
    print(*found, f"{sum(1 for _ in rows())} files, {len(found)} differ", sep="\n")
