"""The door of the room: save, load, and wait for what is being written."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from logging import getLogger
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from dsengine.checkpoints import plain
from dsengine.checkpoints.directory import LATEST, LONGEST_TAG, is_tag, read_latest
from dsengine.checkpoints.errors import CheckpointError
from dsengine.checkpoints.group import CheckpointGroup
from dsengine.checkpoints.load import load
from dsengine.checkpoints.retention import check_keep
from dsengine.checkpoints.save import Snapshot, collect, write
from dsengine.checkpoints.staging import Staging
from dsengine.checkpoints.state import TrainingState

logger = getLogger("dsengine.checkpoint")


def _thread() -> ThreadPoolExecutor:
    """A thread begins on the first GPU: every rank would open a context there, and pay for it."""
    name = "dsengine-checkpoint"
    if not torch.cuda.is_available():
        return ThreadPoolExecutor(1, name)
    device = torch.cuda.current_device()
    return ThreadPoolExecutor(1, name, initializer=torch.cuda.set_device, initargs=(device,))


class Checkpointer:
    """Saves and loads training states under a directory; all calls are collective.

    ``asynchronous``: ``save`` returns after copying to host memory, which is kept for the next
    save; the rest happens in a thread. A failure of that write is raised by the next ``save``,
    ``load`` or ``wait``. States in files are written before it returns.
    ``keep``: how many checkpoints stay, those of the latest steps; None keeps all.
    ``tag_validation``: what to do when ranks name different tags: ``warn`` (rank 0's is
    used), ``ignore`` or ``fail``.
    ``for_deepspeed``: write DeepSpeed's own files, which it loads at the stage and on the number
    of ranks of this run; all of it is in rank 0's memory meanwhile. ``keep`` does not count them.
    """

    def __init__(
        self,
        *,
        asynchronous: bool = False,
        keep: int | None = None,
        tag_validation: str = "warn",
        for_deepspeed: bool = False,
    ) -> None:
        if keep is not None:
            check_keep(keep)
        self.asynchronous = asynchronous
        self.keep = keep
        self.tag_validation = tag_validation.lower()
        self.for_deepspeed = for_deepspeed
        self._group: CheckpointGroup | None = None
        self._staging = Staging()
        self._thread: ThreadPoolExecutor | None = None
        self._pending: Future[Path] | None = None

    @property
    def group(self) -> CheckpointGroup:
        """The ranks, for who does something else with files: nothing is being written any more.

        Raises what a write failed with.
        """
        self.wait()  # its thread uses the same group
        return self._ranks

    @property
    def _ranks(self) -> CheckpointGroup:
        if self._group is None:  # creating a process group is collective: not before it is needed
            self._group = CheckpointGroup()
        return self._group

    def save(
        self,
        state: TrainingState,
        save_dir: str | PathLike[str],
        tag: str,
        *,
        client_state: Mapping[str, Any] | None = None,
        save_latest: bool = True,
        exclude_frozen: bool = False,
    ) -> Path:
        """Write a checkpoint ``save_dir/tag`` and return its path.

        Raises CheckpointError on every rank when any rank could not write; what was there
        before stays as it was. Raises ValueError for a directory, tag or client state that cannot
        be used.
        """
        if not save_dir:
            raise ValueError("save_dir is empty: name the directory that checkpoints lie in")
        self.wait()
        root = Path(save_dir)
        tag = self._agreed_tag(str(tag))
        extra, changed = plain.as_plain(client_state or {})
        if changed and self._ranks.is_coordinator:
            said = "client_state: %s held objects, which are saved as the plain data in them"
            logger.warning(said, ", ".join(changed))
        what = f"saving checkpoint {root / tag}"
        snapshot = collect(state, self._ranks, tag, extra, exclude_frozen=exclude_frozen)
        if not self.asynchronous or state.in_files:
            return self._write(snapshot, root, save_latest)
        self._ranks.run(lambda: snapshot.stage(self._staging), what)
        self._thread = self._thread or _thread()
        self._pending = self._thread.submit(self._write, snapshot, root, save_latest)
        return root / tag

    def _write(self, snapshot: Snapshot, root: Path, save_latest: bool) -> Path:
        if self.for_deepspeed:
            from dsengine.checkpoints.deepspeed_layout.write import save_for_deepspeed

            return save_for_deepspeed(snapshot, self._ranks, root, save_latest=save_latest)
        return write(snapshot, self._ranks, root, save_latest=save_latest, keep=self.keep)

    def wait(self) -> None:
        """Return when nothing is being written any more; raise what a write failed with."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def load(
        self,
        state: TrainingState,
        load_dir: str | PathLike[str],
        tag: str | None = None,
        *,
        strict: bool = True,
        optimizer_states: bool = True,
        lr_scheduler_states: bool = True,
        module_only: bool = False,
        verify: bool = True,
    ) -> tuple[str | None, dict[str, Any]]:
        """Load ``tag``, or what ``latest`` names; return (path, client state).

        Returns (None, {}) when no tag is given and the directory has no ``latest``. Raises
        CheckpointError or CheckpointMismatchError on every rank, before anything is changed,
        when the checkpoint cannot be used.
        """
        self.wait()
        root = Path(load_dir)
        found = self._ranks.run_on_coordinator(
            lambda: tag if tag is not None else read_latest(root), f"reading {root}"
        )
        if found is None:
            logger.warning("no checkpoint loaded: %s has no file named latest", root)
            return None, {}
        client_state = load(
            state,
            self._ranks,
            root / str(found),
            strict=strict,
            optimizer_states=optimizer_states,
            lr_scheduler_states=lr_scheduler_states,
            module_only=module_only,
            verify=verify,
        )
        return str(root / str(found)), client_state

    def close(self) -> None:
        """Finish writing and give up thread and process group."""
        self.wait()
        self._staging = Staging()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        if self._group is not None:
            self._group.close()
            self._group = None

    def _agreed_tag(self, tag: str) -> str:
        if not is_tag(tag):
            raise ValueError(
                f"{tag!r} cannot be a checkpoint tag: it must be a plain visible name of at most "
                f"{LONGEST_TAG} bytes without blanks at its ends, and not {LATEST!r}"
            )
        tags = self._ranks.gather(tag)
        if len(set(tags)) > 1 and self.tag_validation != "ignore":
            message = f"ranks name different checkpoint tags: {sorted(set(tags))}"
            if self.tag_validation == "fail":
                raise CheckpointError(message)
            logger.warning("%s; using %r of rank 0", message, tags[0])
        return tags[0]
