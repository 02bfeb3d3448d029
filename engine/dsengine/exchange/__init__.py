"""Gathering and reducing units over gloo: every rank sends every other what that one needs.

gloo has no reduce-scatter, torch makes one of an all-reduce: twice the bytes, and the unit
copied twice more. Its all-gather takes a detour through a buffer of its own. A direct exchange
of the pieces moves (n-1)/n of a unit each way, the least there is, from and to where they rest.
"""

from dsengine.exchange.buffers import Buffers
from dsengine.exchange.gather import UnitAllGather, start_gather
from dsengine.exchange.reduce import Reductions, UnitReduceScatter
from dsengine.exchange.tags import can_exchange

__all__ = [
    "Buffers",
    "Reductions",
    "UnitAllGather",
    "UnitReduceScatter",
    "can_exchange",
    "start_gather",
]
