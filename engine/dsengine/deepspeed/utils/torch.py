"""Checks of torch's release."""

import torch
from packaging.version import Version


def required_torch_version(
    min_version: float | str | None = None, max_version: float | str | None = None
) -> bool:
    """Return whether torch's release is between the two, both inclusive.

    Raises ValueError without either.
    """
    if min_version is None and max_version is None:
        raise ValueError("pass min_version or max_version")
    release = Version(torch.__version__)
    above = min_version is None or Version(str(min_version)) <= release
    return above and (max_version is None or release <= Version(str(max_version)))


__all__ = ["required_torch_version"]
