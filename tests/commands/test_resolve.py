"""``dsconfig resolve``: terminal output, JSON and errors."""

import json
from pathlib import Path

import pytest

import command_line
import dsconfig

ROOT = Path(__file__).parents[2]
BAICHUAN = "examples/baichuan2.json"
WORLD = ("--gpus", "2", "--device", "cpu", "--micro-batch", "8", "--global-batch", "32")


def run(*arguments, columns=120, **more):
    """Run ``resolve``, for dsengine unless another program is specified."""
    target = () if "--runtime" in arguments else ("--runtime", "dsengine")
    return command_line.run("resolve", *arguments, *target, cwd=ROOT, columns=columns, **more)


def test_ledger_lists_values_with_reasons():
    done = run(BAICHUAN, *WORLD, "--model", "examples/gpt.json")
    assert done.returncode == 0, done.stderr
    for key, value in (
        ("bf16.enabled", "true"),
        ("train_batch_size", "32"),
        ("train_micro_batch_size_per_gpu", "8"),
        ("gradient_accumulation_steps", "2"),
    ):
        line = next(line for line in done.stdout.splitlines() if line.startswith(key))
        assert line.split()[1] == value
    assert max(map(len, done.stdout.splitlines())) <= 120


def test_narrow_terminal_gets_a_list():
    done = run(BAICHUAN, *WORLD, columns=50)
    assert "train_batch_size = 32" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 50


def test_json_output_has_documented_fields():
    done = run(BAICHUAN, *WORLD, "--output-format", "json")
    data = json.loads(done.stdout)
    assert data["format_version"] == "2.0"
    assert data["config"]["gradient_accumulation_steps"] == 2
    assert data["diagnostics"] == []
    for entry in data["ledger"]:
        assert entry.keys() >= {"pointer", "value", "source", "rule", "inputs"}


def test_resolved_config_keeps_key_order(tmp_path):
    out = tmp_path / "concrete.json"
    assert run(BAICHUAN, *WORLD, "-o", str(out)).returncode == 0
    written = json.loads(out.read_text())
    original = dsconfig.read(ROOT / BAICHUAN).value
    assert list(written) == list(original)
    assert dsconfig.resolve(written, dsconfig.Facts(world_size=2)).ledger == ()


def test_explain_prints_inputs_of_one_key():
    done = run(BAICHUAN, *WORLD, "--explain", "gradient_accumulation_steps")
    assert done.stdout.startswith("gradient_accumulation_steps = 2\n")
    assert "source: calculated" in done.stdout and "data_parallel: 2" in done.stdout
    untouched = run(BAICHUAN, *WORLD, "--explain", "/zero_optimization/stage")
    assert "set in the file" in untouched.stdout


def test_missing_facts_exit_with_code_1(tmp_path):
    out = tmp_path / "never.json"
    done = run(BAICHUAN, "-o", str(out))
    assert done.returncode == 1
    assert "--gpus" in done.stdout and "--device" in done.stdout
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("no-such.json",), "no-such.json"),
        ((BAICHUAN, "--params", "many"), "--params"),
        ((BAICHUAN, "--runtime", "jax"), "jax"),
        ((BAICHUAN, "--output-format", "xml"), "--output-format"),
        ((BAICHUAN, "--model", "lama-2-13b"), "llama-2-13b"),
    ],
)
def test_usage_error_is_one_line_and_exit_code_2(arguments, expected):
    done = run(*arguments)
    assert done.returncode == 2
    assert expected in done.stderr and "Traceback" not in done.stderr


def test_standard_input_and_overrides():
    text = '{"train_batch_size": 64, // comment\n  train_micro_batch_size_per_gpu: auto\n}'
    done = run(
        *("-", "--gpus", "4", "--set", "gradient_accumulation_steps=2"),
        *("--output-format", "json"),
        stdin=text,
    )
    assert json.loads(done.stdout)["config"]["train_micro_batch_size_per_gpu"] == 8


def test_errors_of_target_program_are_shown(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text('{"train_micro_batch_size_per_gpu": 3, "zero_optimization": {"stage": 2}}')
    arguments = tmp_path / "args.json"
    arguments.write_text('{"per_device_train_batch_size": 4}')
    flags = ("--runtime", "transformers", "--gpus", "2", "--training-args", str(arguments))
    done = run(str(path), *flags)
    assert done.returncode == 1
    text = " ".join(done.stdout.split())
    assert "error[DSC703]" in text and "transformers raises a ValueError" in text


def test_infinity_is_written_as_null(tmp_path):
    out = tmp_path / "concrete.json"
    flags = ("--runtime", "accelerate", *WORLD, "-o", str(out))
    assert run("examples/classifier.json", *flags).returncode == 0
    assert json.loads(out.read_text())["steps_per_print"] is None


TO_ALL = ("--runtime", "all", "--output-format", "json")


def test_json_findings_match_validate():
    refused = run(BAICHUAN, "--gpus", "2", "--runtime", "deepspeed", "--output-format", "json")
    validated = command_line.run("validate", BAICHUAN, *TO_ALL, cwd=ROOT)
    found = json.loads(refused.stdout)["diagnostics"]
    (file,) = json.loads(validated.stdout)["files"]
    assert found[0].keys() == file["diagnostics"][0].keys()
    assert found[0]["range"]["start"] == {"line": 2, "column": 25}
    assert {each["code"] for each in found} == {"DSC101"}


def test_explain_as_json():
    expected = run(BAICHUAN, *WORLD, "--explain", "bf16.enabled", "--output-format", "json")
    (entry,) = json.loads(expected.stdout)["ledger"]
    assert entry["pointer"] == "/bf16/enabled" and entry["value"] is True


@pytest.mark.parametrize(
    "text", ["", '{"train_batch_size": 8, "fp16": {'], ids=["empty", "cut off"]
)
@pytest.mark.parametrize("runtime", ["dsengine", "deepspeed", "transformers", "accelerate"])
def test_a_guess_at_a_broken_file_is_not_resolved(text, runtime, tmp_path):
    broken, out = tmp_path / "ds.json", tmp_path / "out.json"
    broken.write_text(text)
    done = run(str(broken), "--gpus", "2", "--runtime", runtime, "-o", str(out))
    assert done.returncode == 1 and "error[DSC00" in done.stdout
    assert not out.exists() and "Traceback" not in done.stderr


def test_a_broken_file_is_not_converted(tmp_path):
    broken = tmp_path / "ds.json"
    broken.write_text('{"train_batch_size": 8, "fp16": {')
    done = command_line.run("convert", broken, "--to", "json")
    assert done.returncode == 1 and "error[DSC002]" in done.stdout


def test_unsupported_setting_is_reported_and_config_written(tmp_path):
    out = tmp_path / "out.json"
    extra = ("--set", "zero_optimization.zenflow={}", "-o", str(out))
    done = run(BAICHUAN, *WORLD, "--model", "examples/gpt.json", *extra)
    assert done.returncode == 1 and "error[DSC762]" in done.stdout
    assert json.loads(out.read_text())["train_batch_size"] == 32
    done = run(
        BAICHUAN,
        *WORLD,
        "--model",
        "examples/gpt.json",
        *extra,
        "--force",
        "--output-format",
        "json",
    )
    assert [each["code"] for each in json.loads(done.stdout)["diagnostics"]] == ["DSC762"]


def test_assumed_accumulation_is_not_a_setting_of_the_run(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text('{"train_batch_size": "auto", "gradient_accumulation_steps": "auto"}')
    world = ("--gpus", "2", "--micro-batch", "1", "--runtime", "dsengine")
    done = run(str(path), *world, "--output-format", "json")
    sources = {entry["pointer"]: entry["source"] for entry in json.loads(done.stdout)["ledger"]}
    assert sources["/gradient_accumulation_steps"] == "default"
    done = run(str(path), *world, "--accumulation", "1", "--output-format", "json")
    sources = {entry["pointer"]: entry["source"] for entry in json.loads(done.stdout)["ledger"]}
    assert sources["/gradient_accumulation_steps"] == "training"


def test_refused_key_is_reported_for_dsengine(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"foo": 1}}')
    done = run(str(path), "--gpus", "2")
    assert done.returncode == 1 and "error[DSC021]" in done.stdout


def test_config_on_stdout_is_resolved_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}')
    done = run(str(path), "--runtime", "accelerate", "-o", "-")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("error[DSC150]") == 2
    done = run(str(path), "--runtime", "accelerate", "--gpus", "2", "--micro-batch", "1", "-o", "-")
    assert done.returncode == 0
    assert json.loads(done.stdout)["train_micro_batch_size_per_gpu"] == 1


PARTLY_KNOWN = {
    "train_micro_batch_size_per_gpu": "auto",
    "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}},
}


def test_known_values_are_printed_although_a_fact_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(PARTLY_KNOWN))
    flags = (str(file), "--gpus", "2", "--model", "llama-2-7b", "--runtime", "transformers")
    done = run(*flags)
    assert done.returncode == 1 and "the number of optimizer steps is unknown" in done.stdout
    assert "train_micro_batch_size_per_gpu" in done.stdout and "16,777,216" in done.stdout
    assert "total_num_steps  " not in done.stdout
    explained = run(*flags, "--explain", "reduce_bucket_size")
    assert explained.returncode == 1
    assert explained.stdout.startswith("zero_optimization.reduce_bucket_size = 16,777,216")
    assert "the number of optimizer steps is unknown" in explained.stderr
    unnamed = run(str(file), "--gpus", "2", *flags[-2:], "--explain", "reduce_bucket_size")
    assert "set in the file" not in unnamed.stdout + unnamed.stderr and unnamed.returncode == 1
    one = run(*flags, "--explain", "total_num_steps")
    assert "specify --total-steps" in one.stdout and "DSC150" not in one.stderr
