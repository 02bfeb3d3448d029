"""transformers reads what is exported, and its models recompute activations by config."""

from pathlib import Path

import pytest

from training.ranks import Ranks


@pytest.mark.live
@pytest.mark.engine
def test_from_pretrained_reads_the_export(tmp_path: Path) -> None:
    with Ranks(2) as own:  # transformers may bring DeepSpeed along
        said, _ = own.run("engine_storage.jobs.hugging_face:exported", folder=str(tmp_path))
    assert said == {
        "recomputed": True,
        "complaints": [],
        "same": True,
        "tied": True,
        "into shards": True,
    }
