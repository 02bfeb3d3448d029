"""Who owns what at stages 1 and 2: the flat buffer is cut into equal parts."""

from dataclasses import dataclass

from dsconfig.cost.deepspeed.releases import Release
from dsconfig.cost.workload import Workload
from dsconfig.runtimes.effective import Precision

_ALIGNMENT = 2  # elements per rank, for 4-byte starts of 16-bit data


@dataclass(frozen=True, slots=True)
class Partition:
    """One rank's part. All in elements; ``owners`` gives first and last rank per weight index."""

    total: int
    elements: int
    rank: int
    touched: int
    """Sum of the parameters that have any element in this part, each in full."""
    compact: bool
    """fp32 accumulation of 16-bit gradients: exactly the owned elements are kept."""
    owners: dict[int, tuple[int, int]]

    @classmethod
    def largest(cls, job: Workload) -> "Partition":
        """The part of the rank that touches most; of rank 0 where all are alike."""
        alignment = _ALIGNMENT * job.ranks
        flat = job.trained
        total = -(-flat // alignment) * alignment
        elements = total // job.ranks
        owners: dict[int, tuple[int, int]] = {}
        touched: dict[int, int] = {0: 0}
        offset = 0
        for index, weight in enumerate(job.weights):
            if not weight.trainable:
                continue
            first, last = offset // elements, (offset + weight.elements - 1) // elements
            owners[index] = (first, last)
            for rank in range(first, last + 1):
                touched[rank] = touched.get(rank, 0) + weight.elements
            offset += weight.elements
        rank = max(touched, key=lambda each: (touched[each], -each))
        numerics = job.effective.numerics
        exact = Release(job.version).sums_exactly
        compact = exact and job.width == 2 and numerics.grad_accum_dtype is Precision.FP32
        return cls(total, elements, rank, touched[rank], compact, owners)

    def owns(self, index: int) -> bool:
        """Whether this rank owns any element of the weight."""
        first, last = self.owners[index]
        return first <= self.rank <= last
