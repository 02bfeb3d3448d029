"""``dsconfig explain`` for keys and rules, as text and JSON."""

import json
import re
from pathlib import Path

import pytest

from dsconfig.reference.keys import key_as_text
from dsconfig.resolver.policy import POLICY
from dsconfig.runtimes import AutoHandling, every_runtime
from dsconfig.schema import keys

from .conftest import Run

DOCS = Path(__file__).parents[2] / "docs"


def test_explain_key(run: Run) -> None:
    code, out, _ = run("explain", "zero_optimization.reduce_bucket_size")
    assert code == 0
    lines = dict(re.findall(r"^  (\S[\w ]{0,10}?)\s{2,}(.*)$", out, re.MULTILINE))
    assert lines["type"] == 'an integer greater than 0 or "auto"'
    assert lines["default"] == "500000000"
    assert lines["bounds"] == '{"minimum": 0} before 0.19.6'
    assert lines["unit"] == "elements"
    assert lines["auto"].startswith("dsengine: hidden_size^2")
    assert "transformers: hidden_size^2" in out
    assert "deepspeed: silently ignored; the default applies (500000000)" in out


def test_explain_changed_default(run: Run) -> None:
    _, out, _ = run("explain", "gradient_clipping")
    assert re.search(r"default +1.0\n +0.0 before 0.19.3", out)


def test_explain_block_lists_keys(run: Run) -> None:
    _, out, _ = run("explain", "fp16")
    assert "unknown keys in this block are rejected from 0.17.1" in out
    assert "fp16.min_loss_scale" in out


def test_explain_removed_key(run: Run) -> None:
    _, out, _ = run("explain", "amp")
    assert "until 0.19.7; rejected since 0.19.8" in out
    assert "use instead torch_autocast" in out


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("eigenvalue", "not read by any release; rejected since 0.19.8"),
        ("msamp.enabled", "read by another program, not by DeepSpeed"),
        ("compile", "not from 0.14.4 to 0.16.5"),
        ("scheduler.params.total_num_steps", "always"),
        ("data_efficiency.data_routing.random_ltd.total_layer_num", "if enabled is true"),
        ("zero_optimization.zenflow.select_strategy", "deepspeed: a supported value"),
        ("optimizer.params.ns_method", "applies to  Muon"),
        ("zero_optimization.max_live_parameters", "also named  max_live_parameters"),
        ("/zero_optimization/stage", "16 bytes at stage 0, on N ranks 4 + 12/N at 1"),
    ],
)
def test_explain_other_keys(run: Run, path: str, expected: str) -> None:
    assert expected in run("explain", path)[1]


def test_explain_ambiguous_name(run: Run) -> None:
    code, out, _ = run("explain", "device")
    assert code == 0
    assert "2 keys are named device" in out
    assert "zero_optimization.offload_param.device" in out


def test_explain_key_without_block(run: Run) -> None:
    assert run("explain", "overlap_comm")[1].startswith("zero_optimization.overlap_comm\n")


def test_explain_unknown_name(run: Run) -> None:
    code, out, err = run("explain", "zero_optimisation")
    assert (code, out) == (2, "")
    assert "did you mean zero_optimization?" in err
    assert "did you mean" not in run("explain", "qqqqqqq")[2]


def test_for_programs(run: Run) -> None:
    _, out, _ = run("explain", "gradient_clipping", "--output-format", "json")
    (key,) = json.loads(out)["keys"]
    assert key["earlier_defaults"] == [{"before": "0.19.3", "default": 0.0}]
    assert key["since"] == "0.3.0" and key["until"] is None
    assert set(key["auto"]) == {"dsengine", "deepspeed", "transformers", "accelerate"}


def test_explain_rule(run: Run) -> None:
    code, out, _ = run("explain", "dsc101")
    assert code == 0
    assert out.startswith('# DSC101: Unresolved value "auto"')
    assert '"reduce_bucket_size": "auto"' in out


def test_explain_rule_as_json(run: Run) -> None:
    rule = json.loads(run("explain", "DSC101", "--output-format", "json")[1])["rule"]
    assert (rule["code"], rule["severity"]) == ("DSC101", "error")


def test_explain_unknown_rule_or_format(run: Run) -> None:
    assert run("explain", "DSC000")[0] == 2
    assert run("explain", "fp16", "--output-format", "xml")[0] == 2


def test_every_key_can_be_explained() -> None:
    assert all(key_as_text(key).startswith(key.path) for key in keys())


def test_every_filled_auto_is_documented() -> None:
    for runtime in every_runtime():
        fills = runtime.auto_fills
        if not fills:
            continue
        filled = {
            key.key_path
            for key in keys()
            if not key.is_block and runtime.on_auto(key.key_path, {}) is AutoHandling.FILLED
        }
        declared = {key.key_path for key in keys() if runtime.name in key.auto_filled_by}
        assert filled == set(fills) >= declared, runtime.name


def test_policy_keys_exist() -> None:
    from dsconfig.schema import find

    assert [path for path in POLICY if find(path) is None] == []


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("zero", "zero_optimization"),
        ("401", "DSC401"),
        ("overlap_com", "overlap_comm"),
        ("misplaced-ke", "misplaced-key"),
    ],
)
def test_unknown_name_suggests_keys_and_rules(run: Run, name: str, suggested: str) -> None:
    code, out, err = run("explain", name)
    assert (code, out) == (2, "")
    assert suggested in err.partition("did you mean")[2]


def test_explain_links_to_deepspeed_documentation(run: Run) -> None:
    page = "https://www.deepspeed.ai/docs/config-json/"
    assert f"{page}#zero-optimizations-for-fp16-training" in run("explain", "overlap_comm")[1]
    (key,) = json.loads(
        run("explain", "zero_optimization.offload_optimizer.device", "--output-format", "json")[1]
    )["keys"]
    assert key["deepspeed_docs"] == f"{page}#optimizer-offloading"
    (key,) = json.loads(
        run("explain", "zero_force_ds_cpu_optimizer", "--output-format", "json")[1]
    )["keys"]
    assert key["deepspeed_docs"] is None


def test_explain_file_describes_every_key_with_its_line(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"train_batch_size": "auto",\n "zero_optimization": {"stage": 2, "stag": 1}}')
    code, out, _ = run("explain", str(path))
    assert code == 0
    assert '1: train_batch_size = "auto"' in out and "auto, transformers: ranks x" in out
    assert "2: zero_optimization.stage = 2\n    What is sharded" in out
    assert "zero_optimization.stag = 1\n    not a key of a ds_config; did you mean" in out
    data = json.loads(run("explain", str(path), "--output-format", "json")[1])
    assert [key["path"] for key in data["keys"]][-1] == "zero_optimization.stag"


def test_explain_file_shows_only_the_program_that_runs_it(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"train_batch_size": "auto", "zero_optimization": {"stage": 2}}')
    _, out, err = run("explain", str(path))
    assert 'inferred from "auto"' in err
    assert "auto, transformers:" in out
    assert not [name for name in ("dsengine", "deepspeed", "accelerate") if f"auto, {name}:" in out]
    assert "--runtime" in out.splitlines()[-1]
    _, out, err = run("explain", str(path), "--runtime", "accelerate")
    assert "auto, accelerate:" in out and "auto, transformers" not in out
    assert "accelerate" in err and "inferred" not in err
    data = json.loads(
        run("explain", str(path), "--runtime", "dsengine", "--output-format", "json")[1]
    )
    assert data["runtime"] == "dsengine" and data["keys"]


def test_explain_runtime_requires_a_file(run: Run) -> None:
    code, out, err = run("explain", "overlap_comm", "--runtime", "dsengine")
    assert (code, out) == (2, "") and "requires a file" in err


def test_explain_renders_markdown_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dsconfig.commands import explain

    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    explain.explain("DSC404")
    shown = capsys.readouterr().out
    assert "DSC404" in shown and "##" not in shown and "```" not in shown
