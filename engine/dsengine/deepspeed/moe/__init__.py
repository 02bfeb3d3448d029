"""What scripts ask about experts on ranks of their own, of which there are none here."""

from dsengine.deepspeed.moe import utils

__all__ = ["utils"]
