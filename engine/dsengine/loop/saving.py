"""Checkpoints, weight export and weight loading of an engine."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path as FilePath
from typing import Any

import torch
from torch import Tensor

from dsconfig import Plan
from dsengine.checkpoints import Checkpointer, TrainingState
from dsengine.checkpoints.export.full_weights import (
    DEFAULT_FILE_BYTES,
    SAFETENSORS_NAME,
    full_state_dict,
    load_weights,
    save_weights,
)
from dsengine.communication.peers import in_phase
from dsengine.loop.counters import Accumulation, Counters
from dsengine.loop.offload_states import EVERYTHING, Offloading
from dsengine.observation.events import emit_from_rank_0
from dsengine.optimizers import Binding
from dsengine.optimizers.binding import is_torch_or_own
from dsengine.optimizers.loss_scale import LossScaler
from dsengine.optimizers.precision import DTYPES, policy
from dsengine.parallel.pipeline.module import refuse_stages
from dsengine.sharding import Sharding
from dsengine.topology import Topology

Path = str | PathLike[str]
FILES = "DSENGINE_CHECKPOINTS"
"""Environment variable: the file format of checkpoints, "dsengine" or "deepspeed"."""


@dataclass
class Resumed:
    """What a checkpoint contains besides model and optimizer, if it has a state.

    Scripts may replace ``lr_scheduler`` and ``training_dataloader``.
    """

    lr_scheduler: Any
    loss_scaler: LossScaler
    accumulation: Accumulation
    training_dataloader: Any = None

    def parts(self) -> dict[str, Any]:
        parts = {
            "lr_scheduler": self.lr_scheduler,
            "loss_scale": self.loss_scaler,
            "counters": self.accumulation,
            "data": self.training_dataloader,
        }
        return {name: part for name, part in parts.items() if hasattr(part, "load_state_dict")}


@dataclass(eq=False)
class Checkpoints:
    """Reads and writes files. All methods are collective."""

    plan: Plan
    topology: Topology
    sharding: Sharding
    binding: Binding
    offloading: Offloading
    resumed: Resumed
    counters: Counters
    _checkpointer: Checkpointer | None = None

    def checkpointer(self) -> Checkpointer:
        """Return the object that saves and loads.

        Its attributes ``asynchronous``, ``keep`` and ``for_deepspeed`` can be set;
        checkpoint.writer.decoupled sets the first, DSENGINE_CHECKPOINTS=deepspeed the last.
        """
        if self._checkpointer is None:
            effective = self.plan.effective
            writer = (effective.config.get("checkpoint") or {}).get("writer") or {}
            self._checkpointer = Checkpointer(
                asynchronous=bool(writer.get("decoupled")),
                tag_validation=effective.checkpointing.tag_validation,
                for_deepspeed=requests_deepspeed_files(),
            )
        return self._checkpointer

    @in_phase("save_checkpoint")
    def save_checkpoint(
        self,
        save_dir: Path,
        tag: str | int | None = None,
        client_state: Mapping[str, Any] | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Save everything needed to resume under ``save_dir/tag`` (default ``global_step{N}``).

        Raises CheckpointError on every rank if one cannot write; existing checkpoints are
        unchanged.
        """
        checkpointer = self.checkpointer()
        if checkpointer.for_deepspeed:
            refuse_stages(self.sharding.module, "save_checkpoint()", "pipeline_deepspeed_files")
        name = f"global_step{self.counters.global_steps}" if tag is None else str(tag)
        with self.binding.as_sharded():
            checkpointer.save(
                self._state(),
                save_dir,
                name,
                client_state=client_state,
                save_latest=save_latest,
                exclude_frozen=exclude_frozen_parameters,
            )
        emit_from_rank_0("checkpoint", path=str(FilePath(save_dir) / name))
        return True

    @in_phase("load_checkpoint")
    def load_checkpoint(
        self,
        load_dir: Path,
        tag: str | int | None = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        verify: bool = True,
    ) -> tuple[str | None, dict[str, Any] | None]:
        """Load ``tag``, or the one named in ``latest``, saved at any world size and stage.

        Directories written by DeepSpeed (stages 0 to 3) can be loaded too. If another job removes
        the newest checkpoint meanwhile, the one that is the newest by then is loaded. Returns
        (path, client state), or (None, None) if there is no file ``latest``; the client state also
        has ``global_samples``, ``ds_version`` and other entries of the saved run. Raises
        CheckpointError or CheckpointMismatchError on every rank before anything is changed.
        ``verify``: check the checksum of all data read (DeepSpeed's files have none).
        """
        options = {
            "strict": load_module_strict,
            "optimizer_states": load_optimizer_states,
            "lr_scheduler_states": load_lr_scheduler_states,
            "module_only": load_module_only,
        }
        root, checkpointer = FilePath(load_dir), self.checkpointer()
        group = checkpointer.group
        with self.binding.as_sharded():
            state = self._state()

            def load_tag(chosen: str) -> dict[str, Any] | None:
                from dsengine.checkpoints.deepspeed_layout.files import is_deepspeed_directory
                from dsengine.checkpoints.deepspeed_layout.load import load_deepspeed_checkpoint

                path = root / chosen
                if group.run_on_coordinator(
                    lambda: is_deepspeed_directory(path), f"reading {path}"
                ):
                    model = self.sharding.module
                    refuse_stages(model, "load_checkpoint()", "pipeline_deepspeed_files")
                    return load_deepspeed_checkpoint(state, root, chosen, group=group, **options)[1]
                return checkpointer.load(state, root, chosen, verify=verify, **options)[1]

            return checkpointer.load_with(load_tag, root, None if tag is None else str(tag))

    @in_phase("save_16bit_model")
    def save_16bit_model(
        self,
        save_dir: Path,
        save_filename: str = SAFETENSORS_NAME,
        exclude_frozen_parameters: bool = False,
        max_file_bytes: int = DEFAULT_FILE_BYTES,
    ) -> bool:
        """Write full weights in the training dtype, readable with ``from_pretrained``.

        A name without the suffix ``.safetensors`` writes torch's format. At stage 3
        ``stage3_gather_16bit_weights_on_model_save`` must be set; otherwise nothing is written and
        False is returned.
        """
        self._require_all_layers("save_16bit_model()")
        zero = self.plan.effective.zero
        if zero.stage == 3 and not zero.gather_16bit_weights_on_model_save:
            return False
        save_weights(
            self._state(),
            save_dir,
            save_filename,
            group=self.checkpointer().group,
            dtype=model_dtype(self.plan),
            exclude_frozen=exclude_frozen_parameters,
            max_file_bytes=max_file_bytes,
        )
        return True

    @in_phase("load_pretrained")
    def load_pretrained(self, source: Path, strict: bool = True) -> None:
        """Load Hugging Face safetensors into the model; each rank reads only its shards."""
        self._require_all_layers("load_pretrained()")
        group = self.checkpointer().group
        with self.binding.as_sharded():
            load_weights(self._state(), source, group=group, strict=strict)

    @in_phase("zero3_consolidated_16bit_state_dict")
    def consolidated_16bit_state_dict(
        self, exclude_frozen_parameters: bool = False
    ) -> dict[str, Tensor] | None:
        """Return the full state dict on rank 0, None on other ranks."""
        self._require_all_layers("collecting full weights")
        state = full_state_dict(
            self._state(),
            dtype=model_dtype(self.plan),
            exclude_frozen=exclude_frozen_parameters,
        )
        return state or None

    def _require_all_layers(self, call: str) -> None:
        refuse_stages(self.sharding.module, call, "pipeline_exports")

    def _state(self) -> TrainingState:
        """Return everything that a checkpoint contains.

        Raises RuntimeError while states are offloaded.
        """
        self.offloading.require(EVERYTHING, "saving and loading")
        plan, binding, zero = self.plan, self.binding, self.plan.effective.zero
        return TrainingState(
            module=self.sharding.module,
            optimizer=binding.optimizer,
            masters=binding.checkpoint_masters(),
            parts=self.resumed.parts(),
            description={
                "stage": zero.stage,
                "global_steps": self.counters.global_steps,
                "precision": str(plan.effective.numerics.precision),
                "config": dict(plan.effective.config),
                "axes": plan.mesh.axes,
                "coordinates": plan.mesh.coordinates,
            },
            load_target=binding.load_target,
            state_dtype=self._state_dtype,
            stage_described=self._stage_described(),
            file_backed=zero.optimizer_tier == "nvme",
        )

    def _stage_described(self) -> bool | None:
        """Return whether this rank describes its pipeline stage; None without stages."""
        topology = self.topology
        return topology.rank("samples") == 0 if topology.size("pipeline") > 1 else None

    def _state_dtype(self, weight: Tensor, saved: torch.dtype) -> torch.dtype:
        """Return the dtype in which to load a state of ``weight``, saved as ``saved``.

        Classes of other packages may have states in any dtype: those are loaded as saved.
        """
        is_built_in = is_torch_or_own(type(self.binding.optimizer))
        return policy(self.plan.effective).state_dtype(weight, saved) if is_built_in else saved

    def close(self) -> None:
        """Finish pending writes."""
        if self._checkpointer is not None:
            self._checkpointer.close()
            self._checkpointer = None


def requests_deepspeed_files() -> bool:
    """Whether DSENGINE_CHECKPOINTS requests DeepSpeed's file format.

    Raises ValueError for unknown values.
    """
    value = os.environ.get(FILES, "")
    if value not in ("", "dsengine", "deepspeed"):
        raise ValueError(f"{FILES} is {value!r}; expected dsengine or deepspeed")
    return value == "deepspeed"


def model_dtype(plan: Plan) -> torch.dtype | None:
    """Return the compute dtype; None keeps each tensor's own."""
    name = str(plan.effective.numerics.precision)
    return None if name == "fp32" else DTYPES[name]
