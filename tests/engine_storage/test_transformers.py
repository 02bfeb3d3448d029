"""transformers reads what is exported, and its models recompute activations by config."""

from pathlib import Path

import pytest

from engine_storage.ranks import run_ranks


@pytest.mark.live
@pytest.mark.engine
def test_from_pretrained_reads_the_export(tmp_path: Path) -> None:
    said, _ = run_ranks("hugging_face", 2, tmp_path)
    assert said == {
        "recomputed": True,
        "complaints": [],
        "same": True,
        "tied": True,
        "into shards": True,
    }
