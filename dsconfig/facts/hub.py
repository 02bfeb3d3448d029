"""Models in Hugging Face's cache, found by id without network access."""

import os
from pathlib import Path


def config_of(name: str) -> Path | None:
    """Return the newest cached config.json of an id such as ``meta-llama/Llama-3.1-8B``."""
    if name.count("/") != 1:
        return None
    try:
        snapshots = cache() / f"models--{name.replace('/', '--')}" / "snapshots"
        configs = {path: path.stat().st_mtime for path in snapshots.glob("*/config.json")}
    except (OSError, RuntimeError):  # RuntimeError: "~" of an unknown user
        return None
    return max(configs, key=lambda path: configs[path], default=None)


def cache() -> Path:
    """Return the cache folder, as huggingface_hub determines it."""
    if "HF_HUB_CACHE" in os.environ:
        return Path(os.environ["HF_HUB_CACHE"])
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    return Path(home).expanduser() / "hub"
