"""Reading of defaults from sources, without importing them."""

import ast
from pathlib import Path

import pytest

from facts import dialect_defaults
from facts.dialect_defaults import Below, Source

FIELDS = """
class Base:
    hidden: int = 1

class Arguments(Base):
    default_optim = "adamw_torch"
    if available():
        default_optim = "adamw_torch_fused"
    optim: str = field(default=default_optim)
    rank: int | None = Field(default=None, ge=1)
    length: int = Field(512)
    bf16: str = "auto"
    scheduler: str = SchedulerType.COSINE
    older: str = OptimizerNames.ADAMW_HF.value
    targets: list = field(default_factory=lambda: ["all-linear"])
    required: str
    computed: int = os.cpu_count()
"""

OPTIONS = """
parser.add_argument("--max_len", type=int, default=512)
parser.add_argument("-b", "--micro-batch", type=int, default=8)
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--no-cache", action="store_false", dest="cache")
parser.add_argument("--pretrain", type=str)
parser.add_argument("--run_name", default="run_%s" % now())
parser.add_argument("config")
"""


def test_fields_of_one_class() -> None:
    assert dict(dialect_defaults.fields(ast.parse(FIELDS), ["Arguments"])) == {
        "optim": "adamw_torch",
        "rank": None,
        "length": 512,
        "bf16": "auto",
        "scheduler": "cosine",
        "older": "adamw_hf",
        "targets": ["all-linear"],
    }


def test_fields_of_all_classes() -> None:
    assert "hidden" in dict(dialect_defaults.fields(ast.parse(FIELDS), ["*"]))


def test_options() -> None:
    assert dict(dialect_defaults.arguments(ast.parse(OPTIONS))) == {
        "max_len": 512,
        "micro_batch": 8,
        "bf16": False,
        "cache": True,
        "pretrain": None,
    }


def test_history_has_only_changes(tmp_path: Path) -> None:
    for release, text in {
        "1.0": "class A:\n    x: int = 1\n    old: int = 2\n    y: int = 5\n",
        "1.1": "class A:\n    x: int = 1\n    old: int = 2\n    y: int = 5\n",
        "1.2": "class A:\n    x: int = 3\n    new: int = 2\n",
        "1.3": "",
    }.items():
        file = tmp_path / f"program-{release}/a.py"
        file.parent.mkdir()
        file.write_text(text)
    source = Source("program", "1.0 1.1 1.2 1.3", ("a.py:A",))
    dialect = {
        "launch": {},
        "built_on": "",
        "aliases": {"old": "new"},
        "facts": {"fact": "x + new + y + absent"},
    }
    below = Below({"y": [["4.0", 7], ["5.0", 8]]}, [["1.0", "4.2"], ["1.2", "4.9"]])
    assert dialect_defaults.history(source, dialect, below, tmp_path) == {
        "new": [["1.0", 2]],
        "x": [["1.0", 1], ["1.2", 3]],
        "y": [["1.0", 5], ["1.2", 7]],
    }


def test_yaml_has_dotted_keys_and_no_references(tmp_path: Path) -> None:
    file = tmp_path / "program-1.0/config.yaml"
    file.parent.mkdir()
    file.write_text("actor:\n  strategy: fsdp\n  n: ${oc.select:rollout.n,1}\nnodes: 1\n")
    source = Source("program", "1.0", ("config.yaml:=trainer.",))
    assert dialect_defaults.defaults(source, "1.0", {}, tmp_path) == {
        "trainer.actor.strategy": "fsdp",
        "trainer.nodes": 1,
    }


def test_changed_default_of_a_newer_release_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = "trl/trainer/model_config.py"
    for release, rank in (("1.16.0", 16), ("9.0.0", 32)):
        path = tmp_path / f"trl-{release}" / file
        path.parent.mkdir(parents=True)
        path.write_text(f"class ModelConfig:\n    lora_r: int = {rank}\n    unread: int = {rank}\n")
    source = Source("trl", "1.16.0", (f"{file}:ModelConfig",))
    monkeypatch.setattr(dialect_defaults, "SOURCES", {"trl": source})
    for newest, code in (("1.16.0", 0), ("9.0.0", 1)):
        monkeypatch.setattr(dialect_defaults.releases, "newest", lambda _, found=newest: found)
        assert dialect_defaults.report_newest(tmp_path) == code
        assert ("lora_r: 16 -> 32" in capsys.readouterr().out) is bool(code)
