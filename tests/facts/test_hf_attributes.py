"""The width of a model from its config.json, as transformers and accelerate read it."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dsconfig
from dsconfig.facts import FactError, gather, hf_attributes
from dsconfig.runtimes import integrations
from dsconfig.runtimes.replay import MissingFact, ReplayStop
from dsconfig.schema.paths import REDUCE_BUCKET

AUTO = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "zero_optimization": {
        "stage": 3,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
    },
}
ASKED = [REDUCE_BUCKET]


def resolved(config: dict[str, Any], folder: Path, runtime: str = "transformers") -> Any:
    (folder / "config.json").write_text(json.dumps(config))
    facts = gather(model=folder / "config.json", gpus=1, training_args={})
    return dsconfig.resolve(AUTO, facts, runtime=runtime)


@pytest.mark.parametrize(
    ("config", "width"),
    [
        ({"model_type": "gpt2", "n_embd": 1024, "n_layer": 24, "vocab_size": 50257}, 1024),
        ({"model_type": "gpt2"}, 768),
        ({"model_type": "t5", "d_model": 256, "num_layers": 2, "vocab_size": 100}, 256),
        ({"model_type": "whisper", "d_model": 512}, 512),
        ({"model_type": "segformer", "hidden_sizes": [8, 64, 16]}, 64),
        ({"model_type": "llava", "text_config": {"hidden_size": 5120}}, 5120),
        ({"model_type": "florence2", "text_config": {"d_model": 96}}, 96),
        ({"model_type": "kosmos-2", "text_config": {"model_type": "kosmos_2_text_model"}}, 2048),
        ({"hidden_size": 77}, 77),
    ],
)
def test_bucket_sizes_use_the_attribute_transformers_reads(
    config: dict[str, Any], width: int, tmp_path: Path
) -> None:
    found = resolved(config, tmp_path)
    assert found.ok, found.diagnostics
    assert found.config["zero_optimization"]["reduce_bucket_size"] == width * width


def test_width_not_in_config_stays_unknown(tmp_path: Path) -> None:
    for config in ({"model_type": "my_own"}, {"model_type": "swin", "embed_dim": 96}):
        (found,) = resolved(config, tmp_path).diagnostics
        assert "is not in its config.json" in found.message and found.code == "DSC150", found


def test_model_without_sizes_is_reported_where_needed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bart", "d_model": 64}')
    facts = gather(model=tmp_path, gpus=1, seq_len=8)
    assert facts.width == 64 and facts.model is None
    with pytest.raises(ValueError, match="no hidden size"):
        dsconfig.estimate(dsconfig.resolve({"train_batch_size": 1}, facts), facts)
    (tmp_path / "config.json").write_text('{"some": "file"}')
    with pytest.raises(FactError):
        gather(model=tmp_path)


def saved(kind: Any, config: Any, folder: Path) -> dict[str, Any]:
    config.save_pretrained(folder)
    return json.loads((folder / "config.json").read_text())


def live_width(config: Any) -> Any:
    """Return the width that both integrations read from a live config; None if they stop."""
    parts: tuple[Any, ...] = (config, getattr(config, "text_config", None))
    for part in parts:
        if hasattr(part, "hidden_size"):
            return part.hidden_size
        if hasattr(part, "hidden_sizes"):
            return max(part.hidden_sizes)
    return None


def width_of_file(config: dict[str, Any]) -> Any:
    model: Any = SimpleNamespace(config=hf_attributes.attributes(config))
    try:
        return integrations.width_for_transformers(model, ASKED)
    except ReplayStop:
        return None
    except MissingFact:
        return "unknown"


def model_types() -> list[str]:
    return sorted(json.loads(hf_attributes.FILE.read_text("utf-8")))


SOME = model_types()[::26]


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "model_type",
    [pytest.param(each, marks=() if each in SOME else pytest.mark.deep) for each in model_types()],
)
def test_width_of_saved_config_equals_live_config(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kinds = {CONFIG_MAPPING[model_type]} if model_type in CONFIG_MAPPING else set()
    for kind in kinds:
        default = kind()
        file = saved(kind, default, tmp_path)
        assert width_of_file(file) in (live_width(default), "unknown")
        for name in ("hidden_size", "hidden_sizes"):
            file.pop(kind.attribute_map.get(name, name), None)
        (tmp_path / "config.json").write_text(json.dumps(file))
        shorter = width_of_file(file)
        assert shorter in (live_width(kind.from_pretrained(tmp_path)), "unknown")


@pytest.mark.live
@pytest.mark.deep
@pytest.mark.filterwarnings("ignore")
def test_table_matches_installed_transformers() -> None:
    from facts.record_hf_attributes import recorded, to_text

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    assert to_text(recorded()) == hf_attributes.FILE.read_text("utf-8")
