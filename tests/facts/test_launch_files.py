"""Launch files of the kinds that people write, with the facts that follow from each.

``tests/oracle/launch``: one case a line, with the text of its files. The facts of ``shown.jsonl``
have a place in each program's source. Those of ``cases.jsonl`` were written before our output was
seen; where the two differed, the program's source at the release decided.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import dsconfig
from dsconfig.facts import Facts, dialects, embedded_facts, launch_files
from dsconfig.facts.launch_facts import FILE, LaunchedKeys, Origin, Sourced
from dsconfig.source.shell import commands_of, evaluation

FOLDER = Path(__file__).parents[1] / "oracle/launch"
CASES: list[dict[str, Any]] = [
    json.loads(line)
    for file in sorted(FOLDER.glob("*.jsonl"))
    for line in file.read_text("utf-8").splitlines()
]
YAML = (".yml", "yaml")
SAME = {"DeepSpeedCPUAdam": "adamw", "FusedAdam": "adamw", "adamw_torch_fused": "adamw_torch"}
"""Optimizers that a newer PyTorch or a ds_config replaces, with the same states."""


def comparable(name: str, value: Any) -> Any:
    if name == "attention":
        return "flash" if "flash" in str(value) else value
    return SAME.get(value, value) if name == "optimizer" else value


def write(case: dict[str, Any], folder: Path) -> None:
    for name, text in case["files"].items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


@pytest.mark.parametrize("case", CASES, ids=[case["case"] for case in CASES])
def test_facts_of_launch_files(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(case, tmp_path)
    monkeypatch.chdir(tmp_path)
    package, _, release = case["with"].partition("==")
    launch = launch_files.launch_in(case["entry"], {package: release} if release else {})
    assert launch is not None
    wanted = {name: comparable(name, value) for name, value in case["facts"].items()}
    assert {name: comparable(name, launch.value(name)) for name in wanted} == wanted
    assert not os.path.relpath(launch.files[0], tmp_path).startswith("..")


def test_options_of_a_script_under_accelerate_win_over_its_yaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(next(case for case in CASES if case["case"] == "trl-dpo-accelerate-inline"), tmp_path)
    monkeypatch.chdir(tmp_path)
    facts = embedded_facts.complete(Facts(), dsconfig.read(Path("dpo.sh")))
    training = facts.training
    assert training is not None and (training.micro_batch_size, facts.world_size) == (2, 2)


def facts_of(name: str, variant: str, keys: dict[str, Any]) -> dict[str, Any]:
    program = dialects.dialect(name)
    origin = Origin(FILE, "train.yaml:1")
    written = {key: Sourced(value, origin) for key, value in keys.items()}
    launched = LaunchedKeys(program, variant, program.newest, written)
    found = {fact: launched.fact(fact) for fact in launched.expressions}
    return {fact: None if each is None else each.value for fact, each in found.items()}


PROGRAMS = [
    (each.name, variant)
    for each in dialects.dialects()
    for variant in ("", *each.entries.get("variants", {}))
]


@pytest.mark.parametrize(("name", "variant"), PROGRAMS)
def test_a_default_that_is_written_changes_no_fact(name: str, variant: str) -> None:
    program = dialects.dialect(name)
    before = facts_of(name, variant, {})
    for key in sorted(program.names(variant)):
        default = program.default(key, program.newest, variant)
        if default is not None:
            assert facts_of(name, variant, {key: default}) == before, key


@pytest.mark.parametrize("name", [case["case"] for case in CASES if case["entry"][-4:] in YAML])
def test_an_unknown_key_is_listed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = next(case for case in CASES if case["case"] == name)
    monkeypatch.chdir(tmp_path)
    Path("train.yaml").write_text(case["files"][case["entry"]] + "\nunheard_of: 3\n", "utf-8")
    launch = launch_files.launch_in("train.yaml")
    assert launch is not None
    assert "unheard_of" in [each.key for each in launch.not_understood]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.sh", "X=$(touch made)\n`touch made`\ntouch made\n: > made\ndeepspeed t.py --a $X\n"),
        ("a.sh", "f() { touch made; }\nf\nbash -c 'touch made'\neval touch made\ndeepspeed t.py"),
        ("a.py", "from transformers import TrainingArguments as A\nopen('made', 'w')\n"),
        ("a.py", "TrainingArguments(output_dir=open('made', 'w'), bf16=__import__('os'))\n"),
        ("a.yaml", "base_model: !!python/object/apply:os.mknod [made]\nmicro_batch_size: 1\n"),
    ],
)
def test_nothing_is_executed(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text, "utf-8")
    launch_files.launch_in(name)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_work_is_bounded() -> None:
    command = "deepspeed t.py --a 1\n"
    including = "source ./t.sh\n" * 20 + command
    functions = "".join(f"f{i}() {{ {f'f{i + 1}; ' * 20}}}\n" for i in range(9))
    loops = "".join(f"for i{k} in $(seq 1 32); do\n" for k in range(6)) + "A=1\n" + "done\n" * 6
    for text in (including, f"{functions}f0\n{command}", loops + command):
        followed = commands_of(text, "t.sh", lambda _, text=including: text)
        assert followed.steps <= evaluation.MOST_STEPS
        assert len(followed.included) <= evaluation.MOST_FILES
    for count in (100, 200):
        long = "A=x$B\n" * count + command
        assert commands_of(long, "t.sh", lambda _: None).steps == count + 1


def programs_table() -> str:
    """Return the table of programs in ``docs/internals/launch-files.md``."""
    rows = ["| Program | `--with` | Newest release | Keys that decide facts |", "|---|---|---|---|"]
    for each in dialects.dialects():
        variants = [variant for name, variant in PROGRAMS if name == each.name]
        keys = {key for variant in variants for key in each.names(variant)}
        rows.append(f"| {each.title} | {each.package} | {each.newest} | {len(keys)} |")
    return "\n".join(rows)


def test_page_lists_the_programs() -> None:
    page = FOLDER.parents[2] / "docs/internals/launch-files.md"
    assert programs_table() in page.read_text("utf-8")


def test_file_of_arguments_that_is_missing_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(next(case for case in CASES if case["case"] == "llamafactory-missing-yaml"), tmp_path)
    monkeypatch.chdir(tmp_path)
    launch = launch_files.launch_in("m.sh")
    assert launch is not None
    assert launch.not_understood[0] == ("gone/away.yaml", "m.sh:1 (not read)")
