"""``estimate`` shows each suggested change as a diff and writes the first one with ``-o``."""

import json
from pathlib import Path

import command_line
from command_line import Done

CONFIG = """{
    // Trainer
    "bf16": {"enabled": true},
    "zero_optimization": {
        "stage": 2
    },
    "train_micro_batch_size_per_gpu": 1
}
"""
FACTS = ("--model", "llama-3-8b", "--gpus", "4", "--device", "a100-80gb", "--seq-len", "8192")


def run(folder: Path, *arguments: str) -> Done:
    (folder / "ds.json").write_text(CONFIG)
    return command_line.run("estimate", "ds.json", *FACTS, *arguments, cwd=folder)


def test_file_changes_are_shown_as_a_diff(tmp_path: Path) -> None:
    shown = run(tmp_path, "--runtime", "deepspeed").stdout
    assert '-         "stage": 2' in shown
    assert '+         "stage": 3' in shown
    assert "To fit:" in shown


def test_json_output_contains_the_diff(tmp_path: Path) -> None:
    data = json.loads(run(tmp_path, "--output-format", "json").stdout)
    assert any('+         "stage": 3,' in change["diff"] for change in data["remedies"])


def test_written_config_fits_and_keeps_comments(tmp_path: Path) -> None:
    # With recomputation given, only the file can make it fit.
    flags = ("--recompute", "full", "--device-memory", "30GiB")
    written = run(tmp_path, *flags, "-o", "better.json")
    assert written.returncode == 0
    assert "wrote better.json" in written.stderr
    text = (tmp_path / "better.json").read_text()
    assert "// Trainer" in text
    assert text != CONFIG
    (tmp_path / "ds.json").write_text(text)
    command = ("estimate", "better.json", *FACTS, *flags, "--fail-if-oom")
    again = command_line.run(*command, cwd=tmp_path)
    assert again.returncode == 0, again.stdout


def test_a_config_that_fits_is_not_written(tmp_path: Path) -> None:
    result = run(tmp_path, "--device-memory", "400GiB", "-o", "better.json")
    assert "the config fits" in result.stderr
    assert not (tmp_path / "better.json").exists()


def test_overrides_are_part_of_the_written_config(tmp_path: Path) -> None:
    flags = ("--recompute", "full", "--device-memory", "30GiB", "--set", "steps_per_print=7")
    run(tmp_path, *flags, "-o", "better.json")
    assert '"steps_per_print": 7' in (tmp_path / "better.json").read_text()


def test_change_deletes_deprecated_key_next_to_its_replacement(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(
        CONFIG.replace('"stage": 2', '"stage": 2,\n        "cpu_offload": true')
    )
    done = command_line.run("estimate", "old.json", *FACTS, "-o", "new.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    block = (tmp_path / "new.json").read_text()
    assert "offload_optimizer" in block
    assert "cpu_offload" not in block


def test_first_change_of_the_file_is_written_and_others_are_printed(tmp_path: Path) -> None:
    # Recomputation comes first, and is a setting of the script.
    done = run(tmp_path, "--runtime", "deepspeed", "--device-memory", "80GiB", "-o", "new.json")
    first, *_ = json.loads(
        run(tmp_path, "--runtime", "deepspeed", "--device-memory", "80GiB", *AS_JSON).stdout
    )["remedies"]
    assert first["fits"] and not first["diff"]
    assert f"other change that fits (not written): {first['what']}: model.gradient" in done.stderr
    assert (tmp_path / "new.json").read_text() != CONFIG
    assert f"wrote new.json: {first['what']}" not in done.stderr


AS_JSON = ("--output-format", "json")


ONE_LINE = (
    '{"train_micro_batch_size_per_gpu":1,"bf16":{"enabled":true},"zero_optimization":{"stage":2,'
    '"reduce_bucket_size":5e8,"allgather_bucket_size":2e8,"overlap_com":true}}\n'
)


def test_diff_of_a_file_of_one_line_is_indented(tmp_path: Path) -> None:
    (tmp_path / "line.json").write_text(ONE_LINE)
    options = ("--recompute", "full", "--device-memory", "30GiB", "-o", "new.json")
    arguments = ("estimate", "line.json", *FACTS, "--runtime", "deepspeed", *options)
    done = command_line.run(*arguments, cwd=tmp_path, columns=80)
    shown = [line.strip() for line in done.stdout.splitlines() if line.startswith("      ")]
    assert '-         "stage": 2,' in shown
    assert '+         "stage": 3,' in shown
    assert '"reduce_bucket_size": 5e8,' in shown
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert len((tmp_path / "new.json").read_text().splitlines()) == 1


def test_fixes_of_a_file_of_one_line_are_shown_indented(tmp_path: Path) -> None:
    (tmp_path / "line.json").write_text(ONE_LINE)
    fixes = ("--diff", "--unsafe-fixes")
    fixed = command_line.run("validate", "line.json", *fixes, cwd=tmp_path, columns=80)
    assert "+++ line.json (indented)" in fixed.stdout
    assert '+        "overlap_comm": true' in fixed.stdout.splitlines()
    assert max(map(len, fixed.stdout.splitlines())) <= 80


def test_syntax_fix_of_a_file_of_one_line_is_shown_as_it_is(tmp_path: Path) -> None:
    block = '"zero_optimization":{"stage":2,"overlap_comm":True},"gradient_clipping":1.0'
    config = f'{{"train_batch_size":8,{block}}}'
    (tmp_path / "line.json").write_text(config + "\n")
    done = command_line.run("validate", "line.json", "--diff", "--fix", cwd=tmp_path)
    assert f"+{config.replace('True', 'true')}" in done.stdout.splitlines()
