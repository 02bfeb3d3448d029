"""accelerate with dsengine in the place of DeepSpeed, held to the real one (one rank)."""

import json
from pathlib import Path
from typing import Any

import pytest

from dsconfig.runtimes.base import CONFIG, SCRIPT, runtime_of
from dsconfig.source import read
from dsconfig.source.override import with_overrides
from frameworks.running import tiny_model, told

pytestmark = [pytest.mark.live, pytest.mark.engine]


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("way", ["fields", "file"])
@pytest.mark.parametrize("stage", [2, 3])
def test_a_loop_trains_saves_and_goes_on(
    tmp_path: Path, stage: int, way: str, precision: str
) -> None:
    model = str(tiny_model(tmp_path))
    how = (f"--stage={stage}", f"--way={way}", f"--precision={precision}")

    def run(package: str) -> dict[str, Any]:
        return told(package, "accelerated", tmp_path, model, str(tmp_path / package), *how)

    mine, theirs = run("dsengine"), run("deepspeed")
    close, norms = (1e-5, 1e-5) if precision == "no" else (5e-3, 3e-2)
    for name in ("losses", "again", "rate"):
        assert mine[name] == pytest.approx(theirs[name], rel=close), name
    assert mine["norms"] == pytest.approx(theirs["norms"], rel=norms)
    assert mine["weights"] == pytest.approx(theirs["weights"], rel=close, abs=0.05)
    assert mine["class"] == theirs["class"] == "LlamaForCausalLM" and mine["resumed"]


FILE: dict[str, Any] = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto"},
    "zero_optimization": {"stage": 2, "overlap_comm": True},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
}
REMEDIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "batch": (
        {"/train_micro_batch_size_per_gpu": 2, "/gradient_accumulation_steps": 4},
        {"micro": 2, "accumulation": 4},
    ),
    "offload": (
        {
            "/zero_optimization/stage": 3,
            "/zero_optimization/offload_optimizer": {"device": "cpu", "pin_memory": True},
            "/zero_optimization/offload_param": {"device": "cpu", "pin_memory": True},
        },
        {"stage": 3, "offload_optimizer": "cpu", "offload_param": "cpu"},
    ),
    "bucket": (
        {"/zero_optimization/reduce_bucket_size": 50_000_000},
        {"reduce_bucket_size": 50_000_000},
    ),
    "bf16": ({"/bf16/enabled": True}, {"bf16": True, "fp16": False}),
    "fp16": ({"/fp16/enabled": True}, {"bf16": False, "fp16": True}),
    "rate": ({"/optimizer/params/lr": 3e-4}, {"lr": 3e-4}),
}
"""What is changed, by pointer, and what DeepSpeed has to read then."""
FIXED = FILE | {
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
}


@pytest.mark.parametrize("config", [FILE, FIXED], ids=["auto", "fixed"])
def test_each_remedy_reaches_deepspeed(tmp_path: Path, config: dict[str, Any]) -> None:
    """In the script, in accelerate's settings and in the file: each where the advice puts it."""
    runtime, kinds, jobs = runtime_of("accelerate"), set[str](), list[Any]()
    for edits, _ in REMEDIES.values():
        steps = runtime.steps(edits, config)
        kinds |= {step.where for step in steps}
        in_file = [step.text.replace(" = ", "=", 1) for step in steps if step.where == CONFIG]
        changed = with_overrides(read(config), in_file).value
        script = [step.text for step in steps if step.where == SCRIPT]
        settings = [step.text for step in steps if step.where not in (CONFIG, SCRIPT)]
        jobs.append((changed, script, "\n".join(settings)))
    listed = tmp_path / "jobs.json"
    listed.write_text(json.dumps(jobs))
    found = told("deepspeed", "advised", tmp_path, str(listed))
    for (name, (_, wanted)), seen in zip(REMEDIES.items(), found, strict=True):
        assert seen | wanted == seen, name
    assert kinds == {CONFIG, SCRIPT, "the accelerate config"}
