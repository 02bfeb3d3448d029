"""Models in Hugging Face's cache, found by id without network access."""

import os
from pathlib import Path


def config_of(name: str) -> Path | None:
    """Return the newest cached config.json of an id such as ``meta-llama/Llama-3.1-8B``."""
    if name.count("/") != 1:
        return None
    snapshots = cache() / f"models--{name.replace('/', '--')}" / "snapshots"
    try:
        configs = list(snapshots.glob("*/config.json"))
    except OSError:
        return None
    return max(configs, key=lambda path: path.stat().st_mtime, default=None)


def cache() -> Path:
    """Return the cache folder, as huggingface_hub determines it."""
    if "HF_HUB_CACHE" in os.environ:
        return Path(os.environ["HF_HUB_CACHE"])
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    return Path(home).expanduser() / "hub"
