"""Models as Hugging Face's cache holds them: found by their id, without a network or a library."""

import os
from pathlib import Path


def config_of(name: str) -> Path | None:
    """The newest config.json in the cache for an id such as ``meta-llama/Llama-3.1-8B``."""
    if name.count("/") != 1:
        return None
    snapshots = cache() / f"models--{name.replace('/', '--')}" / "snapshots"
    try:
        found = list(snapshots.glob("*/config.json"))
    except OSError:
        return None
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def cache() -> Path:
    """Where models are kept: as huggingface_hub looks it up."""
    if "HF_HUB_CACHE" in os.environ:
        return Path(os.environ["HF_HUB_CACHE"])
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    return Path(home).expanduser() / "hub"
