"""transformers loads exported weights, and its models recompute activations."""

from pathlib import Path

import pytest

from training.ranks import Ranks


@pytest.mark.live
@pytest.mark.engine
def test_from_pretrained_loads_the_export(tmp_path: Path) -> None:
    with Ranks(2) as own:  # transformers may import DeepSpeed
        result, _ = own.run("engine_storage.jobs.hugging_face:exported", folder=str(tmp_path))
    assert result == {
        "recomputed": True,
        "complaints": [],
        "same": True,
        "tied": True,
        "into shards": True,
    }
