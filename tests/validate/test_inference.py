"""The target program is inferred, printed in the first line, and selects the findings."""

import json
from pathlib import Path

import pytest

import dsconfig
from dsconfig.project import inference, settings
from dsconfig.schema import Version, installed
from validate.test_command import GOOD, Run, codes_of, put, run  # noqa: F401

TRAINER = """{
    "bf16": {"enabled": "auto"},
    "gradient_clipping": "auto",
    "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
    "gradient_accumulation_steps": "auto",
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto"
}
"""
HALF = '{"train_batch_size": 8, "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}'


def test_auto_batch_sizes_infer_trainer(run: Run) -> None:  # noqa: F811
    result = run(put("z2.json", TRAINER))
    assert (result.code, result.out) == (0, "")
    heading, summary = result.err.splitlines()
    assert heading.startswith("z2.json: target: transformers 5.23 + DeepSpeed 0.19.8")
    assert (
        "override with --runtime" in heading and '6 "auto" values filled in at run time' in heading
    )
    assert summary == "1 file, 0 errors, 0 warnings"


@pytest.mark.parametrize(
    ("neighbours", "text", "expected"),
    [
        ({}, TRAINER, "transformers"),
        ({}, GOOD, "deepspeed"),
        ({}, HALF, "deepspeed"),
        ({"acc.yaml": "deepspeed_config:\n  deepspeed_config_file: z2.json\n"}, GOOD, "accelerate"),
        ({"train.yaml": "deepspeed: conf/z2.json\nlr: 1\n"}, GOOD, "transformers"),
        ({"args.json": '{"output_dir": "x",\n "deepspeed": "z2.json"}'}, GOOD, "transformers"),
        ({"other.yaml": "deepspeed: conf/z3.json\n"}, GOOD, "deepspeed"),
        ({"notes.yaml": "see: z2.json\n"}, GOOD, "deepspeed"),
    ],
)
def test_neighboring_files_infer_target_program(
    run: Run,  # noqa: F811
    neighbours: dict[str, str],
    text: str,
    expected: str,
) -> None:
    for name, content in neighbours.items():
        put(name, content)
    result = run(put("z2.json", text), "--output-format", "json")
    (file,) = json.loads(result.out)["files"]
    assert file["runtime"] == expected
    assert file["release"] == "0.19.8" and file["inferred_from"]


def test_specified_runtime_overrides_inference(run: Run) -> None:  # noqa: F811
    put("z2.json", TRAINER)
    (file,) = json.loads(run("z2.json", "--runtime", "deepspeed", "--output-format", "json").out)[
        "files"
    ]
    assert (file["runtime"], file["inferred_from"]) == ("deepspeed", None)
    put("pyproject.toml", '[tool.dsconfig]\nruntime = "accelerate"\n')
    settings.clear_cache()
    assert "pyproject.toml" in run("z2.json").err
    assert "DSC103" in codes_of(run("z2.json", "--runtime", "all", "--output-format", "json"))


@pytest.mark.parametrize(
    ("micro", "flags", "ranks"),
    [
        (2, (), 4),
        (2.0, (), 4),
        (1e400, (), None),
        (3, (), None),  # matches no number of ranks
        ('"auto"', (), None),
        (2, ("--gpus", "4"), None),
        (2, ("--runtime", "all"), 4),
    ],
)
def test_ranks_fixed_by_batch_sizes_are_printed(
    run: Run,  # noqa: F811
    micro: object,
    flags: tuple[str, ...],
    ranks: int | None,
) -> None:
    numbers = '"train_batch_size": 16, "gradient_accumulation_steps": 2, "gradient_clipping": 1'
    put("ds.json", f'{{{numbers}, "train_micro_batch_size_per_gpu": {micro}}}')
    heading = run("ds.json", *flags).err.splitlines()[0]
    assert ("its batch sizes require 4 ranks" in heading) == (ranks is not None)
    (file,) = json.loads(run("ds.json", *flags, "--output-format", "json").out)["files"]
    assert file["ranks"] == ranks


def test_unrealistic_number_of_ranks_is_not_printed(run: Run) -> None:  # noqa: F811
    sizes = '"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1'
    put("ds.json", f'{{"train_batch_size": 1e30, {sizes}}}')
    assert "batch sizes require" not in run("ds.json").err
    (file,) = json.loads(run("ds.json", "--output-format", "json").out)["files"]
    assert file["ranks"] is None


def test_training_arguments_infer_trainer(run: Run) -> None:  # noqa: F811
    put("args.json", '{"per_device_train_batch_size": 8}')
    result = run(put("ds.json", GOOD), "--training-args", "args.json", "--world-size", "1")
    assert "inferred from TrainingArguments" in result.err and "transformers" in result.err


def test_yaml_with_embedded_config_infers_its_program(run: Run) -> None:  # noqa: F811
    result = run(put("run.yaml", "deepspeed: {train_batch_size: 8}\n"), "--output-format", "json")
    assert json.loads(result.out)["files"][0]["runtime"] == "transformers"


UNREADABLE = """{
  "train_batch_size": "auto"
  "train_micro_batch_size_per_gpu": "auto",
  "zero_optimization": {"stage": 2,}
}
"""


def test_config_no_program_accepts_is_fixable(run: Run) -> None:  # noqa: F811
    result = run(put("z2.json", UNREADABLE))
    assert result.code == 1 and "error[DSC701]" in result.out
    assert "1 fixable: dsconfig validate --fix z2.json" in result.err
    assert run("z2.json", "--fix").code == 0
    assert json.loads(Path("z2.json").read_text())["zero_optimization"] == {"stage": 2}


def test_fix_that_removes_comments_is_unsafe(run: Run) -> None:  # noqa: F811
    text = UNREADABLE.replace('"auto"\n', '"auto" // by the Trainer\n')
    assert "--unsafe-fixes" in run(put("z2.json", text)).err
    assert run("z2.json", "--unsafe-fixes").code == 0
    assert "by the Trainer" not in Path("z2.json").read_text()


def test_findings_of_one_cause_are_grouped(run: Run) -> None:  # noqa: F811
    text = '{"train_batch_size": 8, "bf16": {"enabled": true, "loss_scale": 0, "hysteresis": 2}}'
    result = run(put("ds.json", text))
    assert result.out.count("error[DSC022]") == 1 and "also: hysteresis (line 1)" in result.out
    assert "1 error" in result.err
    codes = codes_of(run("ds.json", "--output-format", "json"))
    assert codes.count("DSC022") == 2, "JSON lists every key"


def test_most_severe_finding_is_first(run: Run) -> None:  # noqa: F811
    text = (
        '{"train_batch_size": 8,\n"zero_optimization": {"stage": 1, "sub_group_size": 4},\n"x": 1}'
    )
    listed = run(put("ds.json", text), "--output-format", "concise").out.splitlines()
    severities = [line.split()[2].rstrip(":") for line in listed]
    assert severities == sorted(severities, key=["error", "warning", "info"].index)
    assert len(set(severities)) > 1


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"output_dir": "o", "per_device_train_batch_size": 4, "bf16": true}', "TrainingArg"),
        ('{"num_layers": 12, "hidden-size": 768, "train-iters": 9, "train_batch_size": 8}', "NeoX"),
        ('{"model_type": "llama", "hidden_size": 64, "vocab_size": 9}', "model config"),
        ('{"$defs": {}, "properties": {"stage": {}}}', "JSON Schema"),
        ('{"cmd": "swift sft", "requirements": {"gpu": 1}}', "another program"),
        ('{"id": "a", "label": 0}', "another program"),
        ('{"_comment": "b", "id": "a", "label": 0}', "another program"),
    ],
)
def test_file_of_another_kind_has_one_finding(
    run: Run,  # noqa: F811
    text: str,
    kind: str,
) -> None:
    result = run(put("it.json", text), "--output-format", "concise")
    assert len(result.out.splitlines()) == 1
    assert "DSC012" in result.out and kind in result.out


def test_file_with_misspelled_key_is_a_ds_config(run: Run) -> None:  # noqa: F811
    text = '{"zero_optimisation": {"stage": 2}, "label": 0}'
    assert "DSC021" in codes_of(run(put("it.json", text), "--output-format", "json"))


def test_template_placeholders_are_not_misspellings(run: Run) -> None:  # noqa: F811
    text = '{\n"train_batch_size": GBSZ,\n"gradient_clipping": my_Clip,\n"fp16": {}\n}'
    assert codes_of(run(put("ds.json", text), "--output-format", "json")) == ["DSC008"]


def test_trainer_requires_no_optimizer_in_config(run: Run) -> None:  # noqa: F811
    put("ds.json", GOOD)
    for name, reported in (("transformers", False), ("accelerate", False), ("deepspeed", True)):
        result = run("ds.json", "--runtime", name, "--output-format", "json")
        assert ("DSC613" in codes_of(result)) is reported


def test_installed_release_after_newest_known_is_mentioned(
    run: Run,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(installed, "installed_or_newest", lambda: Version(0, 25, 0))
    result = run(put("ds.json", GOOD))
    assert "installed; checked as 0.19.8, the newest supported" in " ".join(result.err.split())


NEWER = {"transformers": "6.0.1", "accelerate": "1.16.0.dev0"}
IS_NEWER = (
    "transformers 6.0.1 is installed; checked as 5.23, the newest supported",
    "accelerate 1.16.0.dev0 is installed; checked as 1.15, the newest supported",
)


@pytest.mark.parametrize(
    ("program", "remarks"),
    [("transformers", IS_NEWER), ("accelerate", IS_NEWER[1:]), ("deepspeed", ()), ("dsengine", ())],
)
def test_installed_release_newer_than_supported_is_named(
    program: str,
    remarks: tuple[str, ...],
    run: Run,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(installed, "installed_release", NEWER.get)
    result = run(put("ds.json", GOOD), "--runtime", program)
    text = " ".join(result.err.split())
    assert [remark for remark in IS_NEWER if remark in text] == list(remarks)


def test_newer_deepspeed_is_named_for_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "installed_or_newest", lambda: Version(0, 25, 0))
    target = inference.plan_target(None, None)
    assert "DeepSpeed 0.25.0 is installed; checked as 0.19.8" in target.headline


def test_patch_of_a_supported_release_is_not_newer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "installed_release", {"transformers": "5.23.9"}.get)
    trainer = inference.runtime_of("transformers")
    assert list(inference.newer_releases(trainer)) == []
    given = dsconfig.gather(releases=["transformers==6.1"])
    (remark,) = inference.newer_releases(trainer, given)
    assert remark == "transformers 6.1 is in use; checked as 5.23, the newest supported"


def test_filled_auto_values_are_counted() -> None:
    trainer = inference.runtime_of("transformers")
    found = inference.filled_by(trainer, json.loads(TRAINER))
    assert sorted(map(str, found)) == sorted(
        [
            "bf16.enabled",
            "gradient_clipping",
            "zero_optimization.reduce_bucket_size",
            "gradient_accumulation_steps",
            "train_batch_size",
            "train_micro_batch_size_per_gpu",
        ]
    )


def test_help_and_summary_print_commands_that_run(run: Run) -> None:  # noqa: F811
    put("configs/a.json", UNREADABLE)
    put("configs/b.json", UNREADABLE)
    result = run("configs")
    assert "`dsconfig convert configs/a.json --to json -o strict.json`" in result.out
    assert "2 fixable: dsconfig validate --fix configs\n" in result.err
    assert run("--fix", "configs").code == 0
