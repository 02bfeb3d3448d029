"""Batches of a pipeline: the part of an engine that trains a PipelineModule.

[Note: one batch] Every rank runs the events of its stage (``dsconfig.pipelines``). The first and
the last stage each read every micro batch of their data-parallel rank, the first its inputs, the
last its labels. A backward is followed by the end of its micro batch, as in a loop of
``backward()`` and ``step()``; so the last backward of a window reduces gradients over data-parallel
ranks. Then the last stages average the loss and send it to all others, gradients of tied weights
are summed over stages (note in ``parallel/pipeline/stages.py``), and the step clips by the norm
over all stages: an overflow on one stage skips the step on all.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map_only

from dsconfig import Plan, pipelines
from dsengine.communication.devices import device_for
from dsengine.communication.peers import in_phase
from dsengine.loop.counters import Counters
from dsengine.loop.data import RepeatingLoader, TrainingLoader
from dsengine.loop.offload_states import EVERYTHING, MODEL, Offloading
from dsengine.loop.passes import Passes
from dsengine.observation.reporter import Reporter
from dsengine.optimizers.loss_scale import LossScaler
from dsengine.optimizers.precision import Policy
from dsengine.parallel.pipeline.execution import StageExecution
from dsengine.parallel.pipeline.grid import PipelineParallelGrid
from dsengine.parallel.pipeline.messages import Messages, Values, tensors_of, trained
from dsengine.parallel.pipeline.module import PipelineError, PipelineModule
from dsengine.parallel.pipeline.stages import tied_groups, tied_names
from dsengine.sharding import Gradients, Sharding
from dsengine.topology import Topology

ATTRIBUTES = frozenset(
    (
        *("train_batch", "eval_batch", "set_dataloader", "set_dataiterator", "set_batch_fn"),
        *("is_first_stage", "is_last_stage", "num_stages", "stage_id", "prev_stage", "next_stage"),
        *("micro_batches", "micro_batch_size", "grid", "agg_train_loss", "data_iterator"),
        *("is_pipe_parallel", "is_data_parallel", "is_model_parallel", "batch_fn"),
        *("get_pipeline_parallel_rank", "reset_activation_shape", "set_has_attention_mask"),
    )
)
"""Attributes of an engine with a pipeline, as in DeepSpeed's PipelineEngine."""

SETTABLE = frozenset(("data_iterator", "batch_fn"))
"""Those that scripts may set on the engine."""


@dataclass(eq=False)
class Pipeline:
    """Trains and evaluates batches of micro batches over the stages of a module.

    ``end_micro_batch``: called after each backward; at the end of a window it updates the weights.
    """

    module: PipelineModule
    plan: Plan
    topology: Topology
    device: torch.device
    sharding: Sharding
    gradients: Gradients
    policy: Policy
    scaler: LossScaler
    passes: Passes
    counters: Counters
    reporter: Reporter
    offloading: Offloading
    end_micro_batch: Callable[[], None]
    data_iterator: Iterator[Any] | None = None
    batch_fn: Callable[[Any], Any] | None = None
    """Applied to every batch read from the data."""
    agg_train_loss: Tensor | None = None
    """The loss of the last training batch."""
    _loader: Iterable[Any] | None = None
    _loads: int = 0
    """Positions that the loader had loaded when it was last read."""
    _losses: list[Any] = field(default_factory=list[Any])
    _outputs: Any = None
    _computes_loss: bool = True
    _failed: bool = False

    def __post_init__(self) -> None:
        self.num_stages = self.topology.size("pipeline")
        self.stage_id = self.topology.rank("pipeline")
        self.prev_stage, self.next_stage = self.stage_id - 1, self.stage_id + 1
        self.micro_batches = self.plan.batch.accumulation
        self.micro_batch_size = self.plan.batch.micro_batch
        self.is_pipe_parallel = self.num_stages > 1
        self.is_data_parallel = self.topology.size("samples") > 1
        self.is_model_parallel = False
        self.grid = PipelineParallelGrid.of(self.topology)
        self._tied = tied_names(self.module)
        self._tied_groups = tied_groups(self.module, self.topology)
        interval = (self.plan.effective.config.get("pipeline") or {}).get(
            "activation_checkpoint_interval", 0
        )
        if interval > 0:
            self.module.set_checkpoint_interval(interval)
        messages = None
        if self.is_pipe_parallel:
            group = self.topology.group_for(torch.empty(0, device=self.device), "pipeline")
            messages = Messages(group, self.device, dynamic=self.module.dynamic_shape)
        reads = (self.is_first_stage(), self.is_last_stage())
        self._execution = StageExecution(messages, reads=reads)

    @property
    def counted_elsewhere(self) -> frozenset[str]:
        """Names of tied weights that the norm counts on another stage."""
        return frozenset(name for name, stages in self._tied if stages[0] != self.stage_id)

    # Data

    def is_first_stage(self) -> bool:
        """Whether this rank's stage reads the inputs."""
        return self.stage_id == 0

    def is_last_stage(self) -> bool:
        """Whether this rank's stage computes the loss."""
        return self.stage_id == self.num_stages - 1

    def get_pipeline_parallel_rank(self) -> int:
        return self.stage_id

    def set_dataloader(self, loader: Iterable[Any]) -> None:
        """Read training batches from ``loader``, on the first and the last stage."""
        if self.is_first_stage() or self.is_last_stage():
            self._loader, self.data_iterator = loader, iter(loader)

    def set_dataiterator(self, iterator: Iterator[Any]) -> None:
        """Read training batches from ``iterator``, on the first and the last stage."""
        if self.is_first_stage() or self.is_last_stage():
            self._loader, self.data_iterator = None, iterator

    def set_batch_fn(self, fn: Callable[[Any], Any]) -> None:
        """Pass every batch through ``fn`` before it is used."""
        self.batch_fn = fn

    def reset_activation_shape(self) -> None:
        """Do nothing: each batch may have other shapes."""

    def set_has_attention_mask(self, value: bool) -> None:
        """Do nothing: stages exchange tensors of any dtype."""

    def _restart_loaded_data(self) -> None:
        """Read from where a checkpoint ended, if one was loaded since the last batch."""
        loader = self._loader.loader if isinstance(self._loader, RepeatingLoader) else None
        # Others have no position.
        if isinstance(loader, TrainingLoader) and loader.loads != self._loads:
            self._loads = loader.loads
            self.set_dataloader(RepeatingLoader(loader))

    def _next_batch(self, iterator: Iterator[Any] | None) -> tuple[Any, Any]:
        if iterator is None:
            raise ValueError(
                "the pipeline has no data: pass data_iter, or training_data to initialize(), or "
                "call set_dataloader()"
            )
        try:
            batch = next(iterator)
        except StopIteration:
            raise StopIteration(
                f"the data ended before the {self.micro_batches} micro batches of a step: wrap the "
                "loader in RepeatingLoader"
            ) from None
        if self.batch_fn is not None:
            batch = self.batch_fn(batch)
        if not isinstance(batch, tuple | list) or len(batch) < 2:
            raise ValueError(
                f"a batch of a pipeline is (inputs, labels), not {type(batch).__name__}: return "
                "both, or convert batches with set_batch_fn()"
            )
        inputs = tree_map_only(Tensor, self._as_input, batch[0])
        labels = tree_map_only(Tensor, self._to_device, batch[1])
        return _as_tuples(inputs), _as_tuples(labels)

    def _to_device(self, tensor: Tensor) -> Tensor:
        return tensor.detach().to(self.device, non_blocking=True)

    def _as_input(self, tensor: Tensor) -> Tensor:
        """Return a copy, which the first layer may overwrite.

        Reentrant checkpoints compute gradients only if an input requires one.
        """
        moved = self._to_device(tensor)
        if self.module.activation_checkpoint_func is not None and torch.is_grad_enabled():
            moved.requires_grad_(moved.is_floating_point() or moved.is_complex())
        is_own = moved.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
        return moved if is_own and not moved.requires_grad else moved.clone()

    # Batches

    @in_phase("train_batch")
    def train_batch(self, data_iter: Iterator[Any] | None = None) -> Tensor:
        """Train on the micro batches of one step; return their mean loss, on every rank.

        ``data_iter``: yields (inputs, labels) of one micro batch of this data-parallel rank, the
        same on the first and the last stage; it is kept for later calls. Each is a tensor or a
        tuple of tensors. Raises StopIteration if the data ends: with one stage, the step is dropped
        and the next call begins it again; with several, the run must be restarted.
        """
        if not torch.is_grad_enabled():
            raise PipelineError("train_batch() requires gradients: use eval_batch() without them")
        self.offloading.require(EVERYTHING, "train_batch()")
        self._require_intact()
        if data_iter is not None:
            self.set_dataiterator(data_iter)
        else:
            self._restart_loaded_data()
        iterator = self.data_iterator
        self.module.train()
        self._computes_loss = True
        events = pipelines.training_events(self.stage_id, self.num_stages, self.micro_batches)
        try:
            self._run(events, iterator)
        except StopIteration:
            if not self.is_pipe_parallel:  # no other stage waits for this micro batch
                self._restart_window()
            raise
        assert self.agg_train_loss is not None
        return self.agg_train_loss

    @in_phase("eval_batch")
    def eval_batch(
        self,
        data_iter: Iterator[Any],
        return_logits: bool = False,
        compute_loss: bool = True,
        reduce_output: str | None = "avg",
        bcast_loss: bool = True,
        num_micro_batches: int | None = None,
    ) -> Any:
        """Evaluate micro batches without gradients; return their mean loss.

        ``compute_loss``: else the mean of the outputs, on the last stage only. ``reduce_output``:
        None returns the list over micro batches, on the last stage. ``bcast_loss``: return the loss
        on every rank. ``return_logits``: return a pair with the outputs of the last micro batch,
        None on other stages. ``num_micro_batches``: default those of a training step.
        Raises ValueError for another reduction or number, and on every rank that receives the loss
        if it is not a scalar.
        """
        if reduce_output not in (None, "avg"):
            raise ValueError(f"reduce_output {reduce_output!r} is unknown: use 'avg' or None")
        count = self.micro_batches if num_micro_batches is None else num_micro_batches
        if type(count) is not int or count < 1:
            raise ValueError(f"num_micro_batches {count!r} is not a positive integer: pass one")
        self.offloading.require(MODEL, "eval_batch()")
        self._require_intact()
        self.module.eval()
        self._computes_loss = compute_loss
        events = pipelines.evaluation_events(self.stage_id, self.num_stages, count)
        with torch.no_grad():
            self._run(events, iter(data_iter) if self._reads_data() else None)
            found: Any = self._losses if self.is_last_stage() else None
            if reduce_output is not None:
                found = self._mean(shares=compute_loss and bcast_loss, checks=compute_loss)
        outputs, self._outputs, self._losses = self._outputs, None, []
        return (found, outputs) if return_logits else found

    def _restart_window(self) -> None:
        """Drop the gradients of the current step and begin it again."""
        self.gradients.drop()
        self.counters.micro_steps -= self.counters.micro_steps % self.micro_batches
        self._failed = False

    def _reads_data(self) -> bool:
        return self.is_first_stage() or self.is_last_stage()

    def _require_intact(self) -> None:
        if self._failed:
            raise PipelineError(
                "an earlier batch of this pipeline failed, so its stages may be at different micro "
                "batches: restart the run from a checkpoint"
            )

    def _run(self, events: Sequence[pipelines.Event], iterator: Iterator[Any] | None) -> None:
        self._losses, self._failed = [], True
        self._execution.run(self, events, lambda: self._next_batch(iterator))
        self._failed = False

    # Events

    def forward(self, inputs: Values, labels: Any) -> Values:
        """Return the outputs of this stage, or on the last one the loss."""
        trains = torch.is_grad_enabled()
        with self.reporter.phase("forward", trains=trains):
            with self.policy.autocast_context(self.device):
                if self.policy.casts_inputs:
                    inputs = self.policy.cast(inputs)
                self.reporter.record_inputs(*tensors_of(inputs))
                with self.passes.run("forward"):
                    outputs = self.sharding.forward(inputs)
            if not self.is_last_stage():
                return outputs
            self._outputs = None if trains else outputs
            loss = outputs
            if self._computes_loss and self.module.loss_fn is not None:
                loss = self.module.loss_fn(outputs, labels)
        if trains and not _is_scalar(loss):
            raise ValueError(_NO_SCALAR)
        self._losses.append(tree_map_only(Tensor, Tensor.detach, loss))
        return loss

    def backward(self, outputs: Values, gradients: Sequence[Tensor] | None) -> None:
        """Compute the gradients of one micro batch, and end it unless it is the last."""
        roots: list[Tensor] = trained(outputs)
        if self.is_last_stage():
            loss = tensors_of(outputs)[0] / self.micro_batches
            scale = self.scaler.scale
            roots, gradients = [loss if scale == 1.0 else loss.float() * scale], None
        if roots:
            self.passes.prepare_backward(roots)
            with self.passes.run("backward"), self.reporter.phase("backward"):
                torch.autograd.backward(roots, gradients)
                self.gradients.after_backward()
        if (self.counters.micro_steps + 1) % self.micro_batches:
            self.end_micro_batch()

    @torch.no_grad()
    def reduce(self) -> None:
        """End the step: share the loss, sum gradients of tied weights, update the weights."""
        loss = self._mean(shares=True)
        assert loss is not None
        self.agg_train_loss = loss
        self.reporter.record_loss(loss)
        self._sum_tied()
        self.end_micro_batch()

    def _mean(self, *, shares: bool, checks: bool = False) -> Any:
        """Return the mean over micro batches and data-parallel ranks, on the last stage.

        ``shares``: return it on all stages, in fp32. ``checks``: raise ValueError, on the stages
        that would return it, unless it is a scalar. Collective.
        """
        mean: Any = None
        is_scalar = not checks or all(map(_is_scalar, self._losses))
        if self.is_last_stage() and is_scalar:
            mean = self._mean_of(self._losses)
        if shares and self.is_pipe_parallel:
            group = self.topology.group("pipeline")
            value = torch.zeros(()) if mean is None else mean.reshape(())
            both = _on(torch.stack([value, torch.full_like(value, is_scalar)]), group)
            dist.broadcast(both, dist.get_global_rank(group, self.num_stages - 1), group=group)
            mean = both[0].to(self.device)
            is_scalar = not checks or bool(both[1])  # reading it waits for the device
        if not is_scalar:
            raise ValueError(_NO_SCALAR)
        return mean

    def _mean_of(self, values: Sequence[Any]) -> Any:
        """Return the mean of tensors, or of each in tuples, over data-parallel ranks too."""
        if isinstance(values[0], tuple | list):
            return tuple(self._mean_of(each) for each in zip(*values, strict=True))
        mean = torch.stack([value.float() for value in values]).mean(0)
        if self.is_data_parallel:
            mean = _on(mean, self.topology.group("samples"))
            dist.all_reduce(mean, group=self.topology.group("samples"))
            mean = mean / self.topology.size("samples")
        return mean.to(self.device)

    def _sum_tied(self) -> None:
        """Sum the reduced gradients of tied weights over their stages. Collective over those."""
        reduced = dict(self.gradients.reduced())
        masters = self.sharding.masters
        tied = [(name, stages) for name, stages in self._tied if masters[name].requires_grad]
        missing = [name for name, _ in tied if name not in reduced]
        if missing:
            self.gradients.add_zeros(missing)
            reduced = dict(self.gradients.reduced())
        for name, stages in tied:
            group = self._tied_groups[stages]
            assert group is not None
            gradient = reduced[name]
            total = _on(gradient, group)
            dist.all_reduce(total, group=group)
            gradient.copy_(total)


_NO_SCALAR = (
    "the loss of a pipeline must be a scalar tensor: return one from loss_fn, or evaluate with "
    "compute_loss=False"
)


def _is_scalar(loss: object) -> bool:
    return isinstance(loss, Tensor) and loss.numel() == 1


def _on(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the tensor on a device that the group supports."""
    return tensor.to(device_for(group))


def _as_tuples(values: Any) -> Any:
    """Return lists, into which loaders change tuples, as tuples again."""
    return tuple(values) if isinstance(values, list) else values
