"""The installed DeepSpeed accepts resolved configs."""

import json
import warnings
from pathlib import Path

import pytest

import dsconfig
from dsconfig.facts import gather
from dsconfig.resolver.draft import auto_paths
from replays.auto import view

CORPUS = Path(__file__).parents[1] / "oracle" / "corpus"
VERSION = "0.19.8"


def rows():
    lines = (CORPUS / "verdicts.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if not row["template"]]


def facts_for(row, config):
    ranks = row["world_size"] or 1
    given = {key: config.get(key) for key in ("train_batch_size", "gradient_accumulation_steps")}
    product = given["gradient_accumulation_steps"]
    steps = product if isinstance(product, int) else 1
    micro = config.get("train_micro_batch_size_per_gpu")
    micro = micro if isinstance(micro, int) else 1
    return gather(
        gpus=ranks,
        device="a100-80gb",
        model="gpt2-xl",
        seq_len=512,
        global_batch=ranks * micro * steps,
        learning_rate=1e-4,
        total_steps=1000,
        warmup_steps=100,
    )


@pytest.mark.live
def test_resolved_corpus_configs_are_accepted(monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config_module = pytest.importorskip("deepspeed.runtime.config")
    monkeypatch.setattr(config_module.dist, "get_rank", lambda *_: 0)
    accepted, wrong = 0, []
    for row in rows():
        document = dsconfig.read(CORPUS / row["file"])
        if not isinstance(document.value, dict):
            continue
        facts = facts_for(row, document.value)
        reports = (
            dsconfig.validate(document, facts, runtime=program, version=VERSION)
            for program in (None, "dsengine")
        )
        if not all(report.ok for report in reports):
            continue
        resolution = dsconfig.resolve(document, facts, version=VERSION)
        if not resolution.ok:
            wrong.append((row["file"], [found.message for found in resolution.diagnostics]))
            continue
        monkeypatch.setattr(config_module.dist, "get_world_size", lambda *_, w=facts.world_size: w)
        try:
            parsed = config_module.DeepSpeedConfig(json.loads(json.dumps(resolution.config)))
        except Exception as error:
            # Keys that need a CUDA machine are skipped.
            if "CUDA accelerator" not in str(error):
                wrong.append((row["file"], repr(error)))
            continue
        accepted += 1
        assert list(auto_paths(resolution.config)) == []
        assert parsed.train_batch_size == view(resolution.config)["train_batch_size"]
    assert not wrong
    assert accepted > 100
