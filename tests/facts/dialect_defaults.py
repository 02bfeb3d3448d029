"""Write ``defaults.toml``: the defaults of the programs people launch, by release.

    PYTHONPATH=tests python -m facts.dialect_defaults [--sources FOLDER] [--newest]

``--newest`` writes nothing: it prints the defaults that the newest release of each program changes,
and exits with 1 if there are any.

Class fields and ``add_argument`` calls are read from the released sources with ``ast``; nothing is
imported. FOLDER has one folder ``PACKAGE-RELEASE`` per release; what is missing is downloaded
into it.
"""

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import releases
from facts.dialect_names import DIALECTS, FOLDER, flat, names_used

NONE = "none!"
"""TOML has no null."""

Table = dict[str, list[list[Any]]]
"""Per key the releases since which a default holds, each with the default."""


@dataclass(frozen=True)
class Source:
    """Where the defaults of one dialect or variant are.

    A file is ``path`` for ``add_argument`` calls and YAML, or ``path:Class,Class`` for fields, with
    ``=PREFIX`` for a nested block. A path may be a pattern; files that a release does not
    have are left out. Later files replace values of earlier ones.
    """

    package: str
    releases: str
    files: tuple[str, ...]
    repository: str = ""
    tag: str = "v"


TRL_RELEASES = """0.9.6 0.12.2 0.13.0 0.14.0 0.15.0 0.16.0 0.17.0 0.18.2 0.19.0 0.21.0 0.22.0 0.24.0
    0.25.0 0.26.0 0.28.0 0.29.1 1.0.0 1.9.0 1.16.0"""


def _trl(name: str, config: str) -> Source:
    base = "trl/trainer/base_config.py:BaseConfig,_BaseConfig"
    files = (f"trl/trainer/{name}_config.py", f"trl/experimental/{name}/{name}_config.py")
    return Source("trl", TRL_RELEASES, (base, *(f"{path}:{config}" for path in reversed(files))))


OPENRLHF_RELEASES = """0.5.9.post1 0.6.4 0.7.5 0.8.5 0.8.8 0.8.10 0.8.11 0.9.1 0.9.2 0.9.6 0.9.8
    0.9.10 0.10.1 0.10.2 0.10.4 0.11.0"""


def _openrlhf(name: str) -> Source:
    file = f"**/openrlhf/cli/{name}.py"
    return Source("openrlhf", OPENRLHF_RELEASES, (file,), "https://github.com/OpenRLHF/OpenRLHF")


VERL_CONFIG = "verl/trainer/config"
VERL_RELEASES = "0.3.0.post1 0.4.1 0.5.0 0.6.1 0.7.1 0.9.1"

FASTCHAT = (
    "fastchat/train/train.py:ModelArguments,TrainingArguments",
    "fastchat/train/train_lora.py:TrainingArguments,LoraArguments",
)

SOURCES = {
    "axolotl": Source(
        "axolotl",
        "0.5.2 0.6.0 0.7.0 0.8.1 0.10.1 0.12.2 0.13.2 0.16.1 0.17.0 0.19.0",
        (
            "**/axolotl/utils/config/models/input/v0_4_1/__init__.py:ModelInputConfig,HyperparametersConfig,LoraConfig,AxolotlInputConfig",
            "**/axolotl/utils/schemas/model.py:ModelInputConfig",
            "**/axolotl/utils/schemas/training.py:HyperparametersConfig",
            "**/axolotl/utils/schemas/peft.py:LoraConfig",
            "**/axolotl/utils/schemas/trl.py:TRLConfig=trl.",
            "**/axolotl/utils/schemas/config.py:AxolotlInputConfig",
        ),
        "https://github.com/axolotl-ai-cloud/axolotl",
    ),
    "fastchat": Source("fschat", "0.2.36", FASTCHAT),
    "llamafactory": Source(
        "llamafactory",
        "0.8.0 0.8.3 0.9.0 0.9.1 0.9.2 0.9.3 0.9.4 0.9.5",
        (
            "llamafactory/hparams/model_args.py:*",
            "llamafactory/hparams/data_args.py:*",
            "llamafactory/hparams/finetuning_args.py:*",
            "llamafactory/hparams/training_args.py:*",
        ),
    ),
    "ms-swift": Source(
        "ms-swift",
        "2.6.1 3.0.0 3.1.1 3.2.2 3.3.1 3.6.4 3.8.3 3.10.3 3.12.6 4.0.4 4.2.3 4.6.0",
        (
            "swift/llm/utils/argument.py:SftArguments,RLHFArguments",
            "swift/trainers/arguments.py:*",
            "swift/llm/argument/base_args/*.py:*",
            "swift/arguments/base_args/*.py:*",
            "swift/llm/argument/tuner_args.py:TunerArguments",
            "swift/arguments/tuner_args.py:TunerArguments",
            "swift/llm/argument/train_args.py:*",
            "swift/arguments/sft_args.py:*",
            "swift/llm/argument/rlhf_args.py:GRPOArguments,PPOArguments,RLHFArguments",
            "swift/arguments/rlhf_args.py:RLHFArguments,PPOArguments",
        ),
    ),
    **{
        f"openrlhf/train_{name}": _openrlhf(f"train_{name}")
        for name in ("dpo", "kd", "kto", "ppo_ray", "prm", "rm", "sft")
    },
    "transformers": Source(
        "transformers",
        "4.41.2 4.46.3 4.48.3 4.52.4 4.57.6 5.0.0 5.23.0",
        ("transformers/training_args.py:TrainingArguments",),
    ),
    "verl": Source(
        "verl",
        VERL_RELEASES,
        (f"{VERL_CONFIG}/ppo_trainer.yaml", f"{VERL_CONFIG}/_generated_ppo_trainer.yaml"),
    ),
    "verl/fsdp_sft_trainer": Source(
        "verl",
        "0.3.0.post1 0.4.1 0.5.0 0.6.1",
        (f"{VERL_CONFIG}/optim/fsdp.yaml:=optim.", f"{VERL_CONFIG}/sft_trainer.yaml"),
    ),
    "verl/sft_trainer": Source(
        "verl",
        "0.6.1 0.7.1 0.9.1",
        (
            f"{VERL_CONFIG}/model/hf_model.yaml:=model.",
            f"{VERL_CONFIG}/optim/fsdp.yaml:=optim.",
            f"{VERL_CONFIG}/sft_trainer_engine.yaml",
        ),
    ),
    "trl": Source("trl", TRL_RELEASES, ("trl/trainer/model_config.py:ModelConfig",)),
    "trl/dpo": _trl("dpo", "DPOConfig"),
    "trl/grpo": _trl("grpo", "GRPOConfig"),
    "trl/kto": _trl("kto", "KTOConfig"),
    "trl/orpo": _trl("orpo", "ORPOConfig"),
    "trl/ppo": _trl("ppo", "PPOConfig"),
    "trl/reward": _trl("reward", "RewardConfig"),
    "trl/rloo": _trl("rloo", "RLOOConfig"),
    "trl/sft": _trl("sft", "SFTConfig"),
}


def unpacked(source: Source, release: str, folder: Path) -> Path:
    """Return the folder of a release's files; download a wheel, or else clone its tag."""
    target = folder / f"{source.package}-{release}"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory() as downloads:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
        wanted = f"{source.package}=={release}"
        done = subprocess.run([*pip, "--ignore-requires-python", "-d", downloads, wanted])
        for wheel in Path(downloads).glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(target)
    if done.returncode and source.repository:
        clone = ["git", "clone", "-q", "--depth", "1", "--branch", source.tag + release]
        subprocess.run([*clone, source.repository, str(target)], check=True)
    return target


def defaults(source: Source, release: str, aliases: dict[str, str], folder: Path) -> dict[str, Any]:
    """Return the defaults that a release declares, by the name without aliases."""
    root = unpacked(source, release, folder)
    found: dict[str, Any] = {}
    older: dict[str, Any] = {}
    for file in source.files:
        pattern, _, wanted = file.partition(":")
        classes, _, prefix = wanted.partition("=")
        for path in sorted(root.glob(pattern)):
            for key, value in _read(path, classes):
                (found if key not in aliases else older)[prefix + key] = value
    for key, value in older.items():
        if found.get(aliases[key]) is None:
            found[aliases[key]] = value
    return found


def _read(path: Path, classes: str) -> Iterable[tuple[str, Any]]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".yaml":
        values = flat(yaml.safe_load(text))
        return [(key, value) for key, value in values.items() if "${" not in str(value)]
    tree = ast.parse(text)
    return fields(tree, classes.split(",")) if classes else arguments(tree)


def fields(tree: ast.Module, classes: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield the names and defaults of annotated fields of classes, in the order of ``classes``."""
    declared = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    for name in declared if classes == ["*"] else classes:
        constants: dict[str, ast.expr] = {}
        for node in declared[name].body if name in declared else ():
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                constants[node.targets[0].id] = node.value
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
                default = _default_of(node.value, constants)
                if default is not ...:
                    yield node.target.id, default


def _default_of(node: ast.expr, constants: dict[str, ast.expr]) -> Any:
    """Return the default that a field's value states, or ``...``."""
    if isinstance(node, ast.Call):
        by_name = {each.arg: each.value for each in node.keywords}
        factory = by_name.get("default_factory")
        made = factory.body if isinstance(factory, ast.Lambda) else None
        stated = by_name.get("default") or made or (node.args[0] if node.args else None)
        return _default_of(stated, constants) if stated else ...
    if isinstance(node, ast.Name) and node.id in constants:
        return _default_of(constants[node.id], constants)
    return literal(node)


def literal(node: ast.expr) -> Any:
    """Return the value of a literal or of an enum's member, which is its name; else ``...``."""
    if isinstance(node, ast.Attribute):
        member = (
            node.value if node.attr == "value" and isinstance(node.value, ast.Attribute) else node
        )
        return (
            member.attr.lower()
            if isinstance(member, ast.Attribute) and member.attr.isupper()
            else ...
        )
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ...


def arguments(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Yield the names and defaults of all ``add_argument`` calls."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        options = [literal(each) for each in node.args]
        named = {each.arg: literal(each.value) for each in node.keywords}
        long = next((each for each in options if isinstance(each, str) and each[:2] == "--"), None)
        if node.func.attr == "add_argument" and long:
            switches = {"store_true": False, "store_false": True}
            default = named.get("default", switches.get(named.get("action", "")))
            if default is not ...:
                yield named.get("dest") or long[2:].replace("-", "_"), default


@dataclass(frozen=True)
class Below:
    """The table of the dialect that a dialect is built on, and its releases."""

    table: Table
    releases: list[list[str]]

    def at(self, key: str, release: str) -> Any:
        """Return the default of a key that a release of the dialect no longer declares."""
        theirs = _since(self.releases, release)
        return _since(self.table.get(key, []), theirs) if theirs else NONE


def _since(changes: list[list[Any]], release: str) -> Any:
    earlier = [value for since, value in changes if _numbers(since) <= _numbers(release)]
    return earlier[-1] if earlier else NONE


def _numbers(release: str) -> list[int]:
    return [int(each) for each in re.findall(r"\d+", release)]


def history(source: Source, dialect: dict[str, Any], below: Below, folder: Path) -> Table:
    """Return per key that a dialect reads the releases since which its default differs."""
    found: Table = {key: [] for key in names_used(dialect)}
    for release in source.releases.split():
        values = defaults(source, release, dialect["aliases"], folder)
        if not values:
            continue  # a subcommand that this release does not have
        for key, changes in found.items():
            if key not in values and not changes:
                continue  # what the program below says
            value = values.get(key, below.at(key, release))
            value = NONE if value is None else value
            if not changes or changes[-1][1] != value:
                changes.append([release, value])
    return {key: changes for key, changes in sorted(found.items()) if changes}


def changed(name: str, release: str, folder: Path) -> list[str]:
    """Return a line for each default of a key that the dialect reads, and that a release changes
    after the newest known one."""
    source, dialect = SOURCES[name], DIALECTS[name.partition("/")[0]]
    known = source.releases.split()[-1]
    before, after = (
        defaults(source, each, dialect["aliases"], folder) for each in (known, release)
    )
    keys = sorted(names_used(dialect) & (before.keys() | after.keys()))
    lines = [f"  {key}: {before.get(key)!r} -> {after.get(key)!r}" for key in keys]
    differs = [before.get(key) != after.get(key) for key in keys]
    return [line for line, is_other in zip(lines, differs, strict=True) if is_other]


def report_newest(folder: Path) -> int:
    """Print what the newest release of each program changes; return the exit code."""
    found = 0
    for package in dict.fromkeys(source.package for source in SOURCES.values()):
        release = releases.newest(package)
        tables = [name for name, source in SOURCES.items() if source.package == package]
        known = max((SOURCES[name].releases.split()[-1] for name in tables), key=_numbers)
        print(f"{package} {release}, newest known {known}")
        if _numbers(release) <= _numbers(known):
            continue
        for name in tables:
            lines = changed(name, release, folder)
            found += len(lines)
            print(*([f" {name}", *lines] if lines else []), sep="\n", end="\n" * bool(lines))
    return int(found > 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", type=Path, help="folder of unpacked releases")
    parser.add_argument(
        "--newest", action="store_true", help="print what the newest releases change"
    )
    options = parser.parse_args()
    folder = options.sources or Path(tempfile.mkdtemp())
    if options.newest:
        sys.exit(report_newest(folder))
    lines = ["# Defaults by release, written by tests/facts/dialect_defaults.py.\n"]
    tables: dict[str, Table] = {}
    for name, source in sorted(SOURCES.items(), key=lambda each: each[0] != "transformers"):
        dialect = DIALECTS[name.partition("/")[0]]
        base = tables.get(dialect["built_on"], {})
        below = Below(base, dialect.get("built_on_release", []))
        tables[name] = history(source, dialect, below, folder)
    for name, table in sorted(tables.items()):
        lines += [f"\n[{json.dumps(name) if '/' in name else name}]\n"]
        for key, changes in table.items():
            quoted = json.dumps(key) if "." in key else key
            lines.append(f"{quoted} = {json.dumps(changes)}\n")
    (FOLDER / "defaults.toml").write_text("".join(lines))


if __name__ == "__main__":
    main()
