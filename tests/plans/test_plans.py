"""Parallel plans of transformers give the step of one process."""

from pathlib import Path

import pytest

from dsconfig.runtimes import runtime_of
from dsconfig.runtimes.capabilities import refused_experts, refused_plan, refused_sequence
from plans import sweep
from training.ranks import Ranks

SOME = ("deepseek_v3", "granite_swa", "llama4_text", "longcat_flash", "mixtral", "nemotron_h")
"""Experts, packed weights, attention sinks, latent attention and identity experts."""
SOME_CAUSAL = ("gemma3_text", "jetmoe", "llama", "olmo3", "qwen3_moe")
"""Windows by layer, mixed attention, and norms over all heads."""
SOME_MIXED = ("deepseek_v3", "glm4_moe", "gpt_oss", "nemotron_h")
"""Shared experts, biases, and experts without a gate."""
OTHERS = ("roberta masked", "qwen2 tokens", "phi dropout")


@pytest.mark.live
@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "case",
    [
        *SOME,
        *(f"{each} expert" for each in SOME_MIXED),
        *(f"{each} sequence" for each in SOME_CAUSAL),
        *OTHERS,
    ],
)
def test_a_step_equals_one_process(ranks: Ranks, case: str) -> None:
    found = ranks.run("plans.jobs:outcome", seconds=sweep.SECONDS, **sweep.options_of(case))
    assert [kind for kind, _ in found] == ["equal", "equal"], found


def test_every_family_with_a_plan_is_recorded() -> None:
    families = sweep.recorded()["families"]
    assert {*sweep.with_plan()} <= families.keys()
    assert {kind for kind, _ in families.values()} <= sweep.KINDS.keys() - {"different", "failed"}
    assert all(why for kind, why in families.values() if kind != "equal")


def test_tune_splits_the_families_that_the_engine_splits() -> None:
    engine = runtime_of("dsengine")
    for family, (kind, _) in sweep.of_axis(sweep.recorded()["families"], "tensor").items():
        if kind in ("equal", "refused"):
            assert bool(refused_plan(engine, family)) is (kind == "refused"), family


@pytest.mark.live
def test_every_causal_family_is_recorded() -> None:
    assert sweep.recorded()["families"].keys() == set(sweep.cases())


def test_tune_divides_the_sequences_that_the_engine_divides() -> None:
    engine = runtime_of("dsengine")
    for family, (kind, why) in sweep.of_axis(sweep.recorded()["families"], "sequence").items():
        depends = any(word in why for word in ("attn_implementation", "DSC"))
        if kind in ("equal", "refused") and not depends:  # on the implementation, or on heads
            assert bool(refused_sequence(engine, family)) is (kind == "refused"), family


def test_tune_divides_the_experts_that_the_engine_divides() -> None:
    engine = runtime_of("dsengine")
    for family, (kind, _) in sweep.of_axis(sweep.recorded()["families"], "expert").items():
        if kind in ("equal", "refused"):
            assert bool(refused_experts(engine, family)) is (kind == "refused"), family


def test_page_matches_the_record() -> None:
    assert sweep.PAGE.read_text("utf-8") == sweep.page(sweep.recorded())


def test_an_interrupted_run_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "RUNS", tmp_path / "plans.jsonl")
    monkeypatch.setattr(sweep, "Ranks", lambda size: _NoRanks())
    sweep.run(["llama", "qwen3"])
    sweep.run(["llama", "qwen3", "mixtral"])
    assert [*sweep.read().items()] == [
        (name, ("equal", "0")) for name in ("llama", "qwen3", "mixtral")
    ]
    assert len(sweep.RUNS.read_text().splitlines()) == 3
    assert "mixtral" not in "".join(sweep.changes())


class _NoRanks:
    def run(self, job: str, **arguments: object) -> list[tuple[str, str]]:
        return [("equal", "0")] * 2

    def is_usable(self) -> bool:
        return True

    def close(self) -> None:
        pass


@pytest.mark.deep
def test_recorded_plans_still_work() -> None:
    """Resumes from runs/plans.jsonl."""
    sweep.run(sweep.cases())
    assert sweep.changes() == []
