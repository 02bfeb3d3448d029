"""Where the parts and per-element states of an offloaded optimizer are between updates: in memory.

``nvme.py`` has the storage in a file.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from dsengine.tiers import memory
from dsengine.tiers.settings import OffloadSettings
from dsengine.tiers.tiles import Piece, Tile


@dataclass(eq=False)
class HostStorage:
    """Parts and states in the memory of their parts' devices.

    ``parts``: by name, as the optimizer holds them. ``entries``: the names of the optimizer's
    per-element states. ``tiles``: those on the host.
    """

    optimizer: Optimizer
    parts: Mapping[str, nn.Parameter]
    entries: list[str]
    settings: OffloadSettings
    tiles: Sequence[Tile]
    _new_states: dict[str, dict[str, Tensor]] = field(init=False, default_factory=dict)
    """States of parts of which only some pieces have made their first step."""

    def update_entries(self, entries: Iterable[str]) -> None:
        """Add new per-element states: a load may change the optimizer's options."""
        self.entries = [*dict.fromkeys([*self.entries, *entries])]

    def loaded(self) -> Iterator[Tile]:
        """Yield each tile while it is in memory."""
        yield from self.tiles

    def weights(self, piece: Piece) -> Tensor:
        """Return a flat view of this piece of its part, in memory while its tile is updated."""
        return piece.of(self.parts[piece.name].detach())

    def moments(self, piece: Piece) -> dict[str, Tensor]:
        """Return flat views of this piece of the per-element states by name."""
        stored = self._stored_states(piece.name)
        return {name: piece.of(stored[name]) for name in self.entries if name in stored}

    def store_state(self, piece: Piece, state: dict[str, Any]) -> None:
        """Copy new state tensors into place; after the last piece, set the part's state."""
        moments = self.moments(piece) if state else {}
        for name, moment in moments.items():
            if name in state and state[name] is not moment:
                moment.copy_(state[name])
        if state and piece.last:
            stored = self._stored_states(piece.name)
            self.optimizer.state[self.parts[piece.name]] = {
                name: stored[name] if name in moments else value for name, value in state.items()
            }
            self._new_states.pop(piece.name, None)

    def _stored_states(self, name: str) -> dict[str, Tensor]:
        """Return the storage of a part's per-element states by name, created if missing."""
        part = self.parts[name]
        if state := self.optimizer.state.get(part):
            return state
        if name not in self._new_states:
            self._new_states[name] = {
                entry: memory.empty_on_device_of(
                    part, part.shape, pin=False, dtype=self.settings.states
                )
                for entry in self.entries
            }
        return self._new_states[name]

    @contextmanager
    def materialized(self) -> Iterator[None]:
        """Make parts and states readable and writable in full inside."""
        yield

    def mapped_state(self, name: str, entry: str) -> Tensor | None:
        """Return the storage to load a full state of part ``name`` into; None for a new tensor.

        Raises ValueError for a state that cannot be stored.
        """

    def close(self) -> None:
        """Release what is outside of memory."""
