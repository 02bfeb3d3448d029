"""Entry point of the package: save, load, and wait for asynchronous writes."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from logging import getLogger
from os import PathLike
from pathlib import Path
from typing import Any

from dsengine.checkpoints import small_states
from dsengine.checkpoints.choice import check_keep, load_chosen
from dsengine.checkpoints.directory import LATEST, MAX_TAG_BYTES, is_tag
from dsengine.checkpoints.group import CheckpointError, CheckpointGroup
from dsengine.checkpoints.load import load
from dsengine.checkpoints.save import Snapshot, Staging, collect, write
from dsengine.checkpoints.small_states import without_run_state
from dsengine.checkpoints.state import TrainingState
from dsengine.communication.devices import threads_on_device

logger = getLogger("dsengine.checkpoint")


class Checkpointer:
    """Saves and loads training states under a directory; all calls are collective.

    ``asynchronous``: ``save`` returns after copying to host memory, which is reused by the next
    save; a thread writes the files. An error of that write is raised by the next ``save``, ``load``
    or ``wait``. File-backed states are written before ``save`` returns.
    ``keep``: how many checkpoints to keep, those of the latest steps (default: all).
    ``tag_validation``: what to do when ranks pass different tags: ``warn`` (and use rank 0's),
    ``ignore`` or ``fail``.
    ``for_deepspeed``: write DeepSpeed's files, which it loads at the stage and world size of this
    run; rank 0 collects the full state in memory. ``keep`` does not count them.
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
        """The ranks, for other file operations, after pending writes. Raises their error."""
        self.wait()  # its thread uses the same group
        return self._ranks

    @property
    def _ranks(self) -> CheckpointGroup:
        if self._group is None:  # creating a process group is collective: only when needed
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

        Raises CheckpointError on every rank when any rank could not write; an existing checkpoint
        stays intact. Raises ValueError for an invalid directory, tag or client state.
        """
        if not save_dir:
            raise ValueError("save_dir is empty: pass the directory of the checkpoints")
        self.wait()
        root = Path(save_dir)
        tag = self._agreed_tag(str(tag))
        extra, converted = small_states.to_plain(without_run_state(client_state or {}))
        if converted and self._ranks.is_coordinator:
            keys = ", ".join(converted)
            logger.warning("client_state: objects in %s are saved as plain data", keys)
        action = f"saving checkpoint {root / tag}"
        snapshot = collect(state, self._ranks, tag, extra, exclude_frozen=exclude_frozen)
        if not self.asynchronous or state.file_backed:
            return self._write(snapshot, root, save_latest)
        self._ranks.run(lambda: snapshot.stage(self._staging), action)
        self._thread = self._thread or threads_on_device(1, "dsengine-checkpoint")
        self._pending = self._thread.submit(self._write, snapshot, root, save_latest)
        return root / tag

    def _write(self, snapshot: Snapshot, root: Path, save_latest: bool) -> Path:
        if self.for_deepspeed:
            from dsengine.checkpoints.deepspeed_layout.write import save_for_deepspeed

            return save_for_deepspeed(snapshot, self._ranks, root, save_latest=save_latest)
        return write(snapshot, self._ranks, root, save_latest=save_latest, keep=self.keep)

    def wait(self) -> None:
        """Wait for pending writes and raise their error, if any."""
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
    ) -> tuple[str | None, dict[str, Any] | None]:
        """Load ``tag`` (default: the one in ``latest``) and return its path and client state.

        Returns (None, None) when no tag is given and there is no file ``latest``. Raises
        CheckpointError or CheckpointMismatchError on every rank, before anything is changed, when
        the checkpoint cannot be used.
        """
        self.wait()

        def load_tag(chosen: str) -> dict[str, Any]:
            return load(
                state,
                self._ranks,
                Path(load_dir) / chosen,
                strict=strict,
                optimizer_states=optimizer_states,
                lr_scheduler_states=lr_scheduler_states,
                module_only=module_only,
                verify=verify,
            )

        return self.load_with(load_tag, load_dir, tag)

    def load_with(
        self,
        load_tag: Callable[[str], dict[str, Any] | None],
        load_dir: str | PathLike[str],
        tag: str | None,
    ) -> tuple[str | None, dict[str, Any] | None]:
        """Call ``load_tag`` with ``tag`` or the newest tag; return the path and what it returned.

        Returns (None, None) when no tag is given and there is no file ``latest``.
        """
        self.wait()
        root = Path(load_dir)
        loaded = load_chosen(root, tag, self._ranks, load_tag)
        if loaded is None:
            if self._ranks.is_coordinator:
                logger.warning("no checkpoint loaded: %s has no file named %s", root, LATEST)
            return None, None
        return str(root / loaded[0]), loaded[1]

    def close(self) -> None:
        """Finish pending writes and release thread and process group."""
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
                f"{tag!r} is not a valid checkpoint tag: use a printable file name of at most "
                f"{MAX_TAG_BYTES} bytes without slashes, leading dot or surrounding blanks, other "
                f"than {LATEST!r}"
            )
        tags = self._ranks.gather(tag)
        if len(set(tags)) > 1 and self.tag_validation != "ignore":
            message = f"ranks pass different checkpoint tags: {sorted(set(tags))}"
            if self.tag_validation == "fail":
                raise CheckpointError(message)
            logger.warning("%s; using %r of rank 0", message, tags[0])
        return tags[0]
