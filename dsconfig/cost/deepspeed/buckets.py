"""Gradients in the reduce buckets of stages 1 and 2.

Each gradient is copied into the bucket and becomes a view of it. When the next one does not fit,
the bucket is reduced: slices that one rank owns in place, slices of several ranks through a
flattened copy. Then the owned gradients move to the partition.
"""

from dataclasses import dataclass

from dsconfig.cost.deepspeed import categories
from dsconfig.cost.deepspeed.releases import (
    EXACT_FP32_SUMS,
    bucket_elements,
    gradient_test_bytes,
)
from dsconfig.cost.timeline import Timeline
from dsconfig.cost.workload import Workload
from dsconfig.runtimes.effective import Precision, Tier

NORM_WIDTH = 8
"""Bytes per element of a gradient while its norm is computed: fp64 (``get_norm_dtype``)."""
_ALIGNMENT = 2  # elements per rank, for 4-byte starts of 16-bit data


@dataclass(frozen=True, slots=True)
class Partition:
    """One rank's partition, in elements; ``owners`` has the first and last rank per
    weight index."""

    total: int
    elements: int
    rank: int
    touched: int
    """Sum of the parameters with any element in this partition, each in full."""
    compact: bool
    """fp32 accumulation of 16-bit gradients: exactly the owned elements are kept."""
    owners: dict[int, tuple[int, int]]
    slices: dict[int, int]
    """The largest part of each weight that one rank owns, if gradients are offloaded."""

    @classmethod
    def largest(cls, job: Workload) -> "Partition":
        """Return the partition of the rank that touches most; of rank 0 if all are equal."""
        alignment = _ALIGNMENT * job.ranks
        flat = job.trained
        total = -(-flat // alignment) * alignment
        # Experts have groups of parameters of their own, divided over fewer ranks.
        elements = max(total // job.ranks, job.owned)
        owners: dict[int, tuple[int, int]] = {}
        slices: dict[int, int] = {}
        is_offloaded = job.effective.zero.optimizer_tier is not Tier.DEVICE
        touched: dict[int, int] = {0: 0}
        offset = 0
        for index, weight in enumerate(job.weights):
            if not weight.trainable:
                continue
            first, last = offset // elements, (offset + weight.elements - 1) // elements
            owners[index] = (first, last)
            if is_offloaded:
                slices[index] = _largest_slice(offset, weight.elements, elements)
            for rank in range(first, last + 1):
                touched[rank] = touched.get(rank, 0) + weight.elements
            offset += weight.elements
        rank = max(touched, key=lambda candidate: (touched[candidate], -candidate))
        numerics = job.effective.numerics
        exact = job.version >= EXACT_FP32_SUMS
        compact = exact and job.width == 2 and numerics.grad_accum_dtype is Precision.FP32
        return cls(total, elements, rank, touched[rank], compact, owners, slices)

    def owns(self, index: int) -> bool:
        """Return whether this rank owns any element of the weight."""
        first, last = self.owners[index]
        return first <= self.rank <= last


def _largest_slice(offset: int, size: int, each: int) -> int:
    """Return the elements of the largest slice of a weight that is cut at multiples of ``each``."""
    first = min(size, each - offset % each)
    last = (offset + size) % each
    return max(first, min(each, size - first), last if last < size else 0)


def gradient_width(job: Workload) -> int:
    """Return the bytes per element of a waiting gradient: stage 1 accumulates in the accumulation
    dtype."""
    sums_apart = job.effective.zero.stage == 1 and job.mixed
    return job.accumulation_width if sums_apart else job.width


def hold_buckets(job: Workload, line: Timeline) -> None:
    """Allocate the full buckets unless they exist."""
    zero = job.effective.zero
    if zero.contiguous_gradients and not line.held_bytes(categories.BUCKET):
        width = gradient_width(job) if job.version >= EXACT_FP32_SUMS else job.width
        amount = bucket_elements(job.version, zero.reduce_bucket_size, zero.stage) * width
        line.hold(categories.BUCKET, amount)
        if zero.overlap_comm:
            line.hold(categories.SECOND_BUCKET, amount)


def free_buckets(line: Timeline) -> None:
    line.free(categories.BUCKET)
    line.free(categories.SECOND_BUCKET)


class Buckets:
    """State of the buckets during one backward of one rank."""

    def __init__(self, job: Workload, line: Timeline, partition: Partition) -> None:
        self._job, self._line, self._partition = job, line, partition
        zero = job.effective.zero
        self._size = zero.reduce_bucket_size
        self._stage = zero.stage
        self._overlap = zero.overlap_comm
        self._contiguous = zero.contiguous_gradients
        self._offloaded = zero.optimizer_tier is not Tier.DEVICE
        self._width = gradient_width(job)
        self._keeps = self._width != job.width and not partition.compact
        """fp32 sums that are copied into a 16-bit bucket stay where they are until the step."""
        self._fill: list[int] = []  # indices of the weights in the bucket
        self._filled = 0  # elements in the bucket
        self._reduces_at_end = self._stage == 1 and not self._overlap
        self._pending: list[int] = []
        self._partition_made = False
        hold_buckets(job, line)

    def gradient(self, index: int) -> None:
        """Handle the gradient of one weight made by autograd."""
        elements = self._job.weights[index].elements
        if self._width != self._job.width:
            self._line.hold_briefly(categories.GRADIENTS, elements * self._job.width)
        amount = elements * self._width
        if self._stage == 1 and self._job.accumulation > 1:
            self._line.hold_briefly(categories.GRADIENTS, amount)  # accumulated
        else:
            self._line.hold(categories.GRADIENTS, amount)
        if self._reduces_at_end:
            self._pending.append(index)
        else:
            self._add_to_bucket(index)

    def _add_to_bucket(self, index: int) -> None:
        elements = self._job.weights[index].elements
        if self._filled + elements > self._size:
            self._reduce()
        self._fill.append(index)
        self._filled += elements
        if self._contiguous and elements <= self._size and not self._keeps:
            self._line.free(categories.GRADIENTS, elements * self._width)

    def _reduce(self, last: bool = False) -> None:
        if not self._fill:
            return
        line, job = self._line, self._job
        in_bucket = self._contiguous and self._filled <= self._size
        copied = (not in_bucket and len(self._fill) > 1) or self._is_split()
        line.free(categories.STAGING)
        owns = any(self._partition.owns(index) for index in self._fill)
        if self._partition.compact and owns and not self._offloaded:
            self._make_partition()
        in_bucket_width = job.width if self._keeps else self._width
        if copied:
            line.hold(categories.STAGING, self._filled * in_bucket_width)
        if job.communication_width != in_bucket_width:
            line.hold_briefly(categories.CAST, self._filled * job.communication_width)
        if self._partition.compact and self._stage == 2:
            largest = max(job.weights[index].elements for index in self._fill)
            line.hold_briefly(categories.CAST, largest * job.accumulation_width)
        line.free(categories.STAGING)
        for index in self._fill:
            if self._offloaded:
                self._offload_gradient(index)
            self._finish_gradient(index, in_bucket)
        if copied and self._overlap and self._stage == 2 and not last:
            # With overlap the copy may outlive its reduction: gloo and the reduction stream
            # release it when the next one starts.
            line.hold(categories.STAGING, self._filled * self._width)
        self._fill, self._filled = [], 0

    def _is_split(self) -> bool:
        """Return whether the bucket has slices of several ranks (or of several outputs)."""
        if self._partition.compact:
            return len(self._fill) > 1
        ranks = [self._partition.owners[index] for index in self._fill]
        return min(first for first, _ in ranks) != max(last for _, last in ranks)

    def _finish_gradient(self, index: int, in_bucket: bool) -> None:
        """Move the gradient to the partition or free it after the reduction."""
        elements = self._job.weights[index].elements
        amount = elements * self._width
        owned = self._partition.owns(index)
        if owned and self._contiguous and not self._offloaded:
            self._make_partition()
        if in_bucket:
            return  # a view of the bucket: nothing to free
        moved = owned and self._contiguous and not self._offloaded and not self._keeps
        dropped = self._stage == 2 and not owned
        if moved or dropped or (self._offloaded and owned):
            self._line.free(categories.GRADIENTS, amount)

    def _offload_gradient(self, index: int) -> None:
        """Send one gradient to the host, on the rank that owns most of it.

        Its norm is computed in fp64, before 0.19.6 it is tested for overflow whatever its dtype,
        and the owned part is cast (``copy_grads_in_partition``).
        """
        line, job = self._line, self._job
        owned, elements = self._partition.slices[index], job.weights[index].elements
        line.hold_briefly(categories.GRADIENT_NORM, owned * NORM_WIDTH)
        tested = gradient_test_bytes(job.version, job.effective.numerics)
        line.hold_briefly(categories.SENT_OVERFLOW_CHECK, elements * tested)
        if self._width < job.master_width:
            line.hold_briefly(categories.SENT_GRADIENT, owned * job.master_width)

    def _make_partition(self) -> None:
        if self._partition_made:
            return
        self._partition_made = True
        partition = self._partition
        if not partition.compact:
            self._line.hold(categories.PARTITION, partition.touched * self._job.width)
        elif not self._line.held_bytes(categories.PARTITION):
            self._line.hold(categories.PARTITION, partition.elements * self._job.accumulation_width)

    def finish(self) -> None:
        """End of backward: reduce pending gradients and free the buckets."""
        for index in sorted(self._pending):
            self._add_to_bucket(index)
        self._reduce(last=True)
        self._line.free(categories.STAGING)
        if self._width == self._job.width or self._keeps:
            free_buckets(self._line)  # otherwise the sums are views of it until the step
        if self._line.held_bytes(categories.ACCUMULATED) or self._keeps:
            self._line.free(categories.PARTITION)  # added to what was there
