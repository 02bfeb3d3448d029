"""What earlier releases of DeepSpeed allocated otherwise.

Found in the sources of 0.3.16, 0.4.0, 0.5.10, 0.6.7, 0.7.7, 0.12.6, 0.13.5, 0.14.0, 0.14.5,
0.16.9, 0.17.6, 0.18.9, 0.19.2, 0.19.5, 0.19.6 and 0.19.7 beside 0.19.8; the 4.5 in the history of
DeepSpeed (commits 41db1c2f0 and cfa63f5da). Where the two releases around a change are far apart
the later one is written here. Releases that were run with their live tensors counted: ``RUN``.

Default values that changed (contiguous_gradients 0.4.3, sub_group_size 0.4.1, pin_memory 0.19.5,
check_grad_overflow 0.19.3, immediate_grad_update 0.16.5 to 0.17.0) are the schema's business.
"""

from dataclasses import dataclass

from dsconfig.runtimes.effective import Numerics, Precision
from dsconfig.schema.version import NEWEST, PUBLISHED, Version

RUN = tuple(map(Version.parse, ("0.14.5", "0.16.9", "0.18.9", "0.19.6", "0.19.7", "0.19.8")))
PLAIN_BUCKETS = Version(0, 4, 0)
FLAT_STAGE3 = Version(0, 6, 0)
MASKED_OVERFLOW = Version(0, 13, 0)
FP16_CHECKED_ONLY = Version(0, 12, 0)
STAGE3_BUCKET_FOLLOWS_WIRE = Version(0, 17, 0)
CHECKS_BF16 = Version(0, 19, 3)
SCALAR_OVERFLOW = Version(0, 19, 6)
EXACT_FP32_SUMS = Version(0, 19, 8)
MASTERS_PASS_WHOLE, MASTERS_PASS_NARROW = Version(0, 14, 1), Version(0, 17, 0)
FLATTENS_ON_DEVICE = Version(0, 18, 7)
GATHERS_IN_PLACE = Version(0, 18, 5)
SKIPS_GATHERS_OF_ONE = Version(0, 9, 0)
WRAPS_GIVEN_MODELS = Version(0, 19, 4)


def _just_before(version: Version) -> Version:
    """The release before it; where it opens a minor one, the last patch of the one before."""
    if version.patch:
        return version._replace(patch=version.patch - 1)
    return max(each for each in PUBLISHED if each < version)


BEFORE_CHANGES = tuple(
    map(_just_before, (SCALAR_OVERFLOW, FLATTENS_ON_DEVICE, MASTERS_PASS_NARROW, MASKED_OVERFLOW))
)
"""Releases after which the memory of common configs changed, the last one first."""


@dataclass(frozen=True, slots=True)
class Release:
    """One release as far as allocations depend on it."""

    version: Version = NEWEST

    def bucket_elements(self, size: int, stage: int) -> int:
        """Elements of a reduce bucket below stage 3: at stage 2 4.5 times as many before 0.4.0."""
        return size * 9 // 2 if stage == 2 and self.version < PLAIN_BUCKETS else size

    @property
    def stage3_bucket_is_permanent(self) -> bool:
        """Before 0.6.0 it was made in each backward, and twice with overlap_comm."""
        return self.version >= FLAT_STAGE3

    @property
    def stage3_bucket_follows_wire(self) -> bool:
        """Of the dtype of communication; before 0.17 of that of the model."""
        return self.version >= STAGE3_BUCKET_FOLLOWS_WIRE

    @property
    def sums_exactly(self) -> bool:
        """fp32 accumulation at stage 2 keeps fp32 sums; before 0.19.8 it kept 16 bits."""
        return self.version >= EXACT_FP32_SUMS

    @property
    def flattens_on_device(self) -> bool:
        """Stages 1 and 2 lay the weights together where they are, if the card has room for both
        copies (#7828); before, and where it has not, by way of main memory.
        """
        return self.version >= FLATTENS_ON_DEVICE

    @property
    def masters_pass_whole(self) -> bool:
        """ZeRO-Offload's step brings the fp32 masters to the device, to cast them there (from
        #5301 to #7309); before and after it copies into the 16-bit weights.
        """
        return MASTERS_PASS_WHOLE <= self.version < MASTERS_PASS_NARROW

    @property
    def gathers_in_place(self) -> bool:
        """A gather of one parameter alone fills it; before #7661 through a buffer of its size."""
        return self.version >= GATHERS_IN_PLACE

    @property
    def skips_gathers_of_one(self) -> bool:
        """A rank alone uses its shards where they are, and gathers nothing (#2953)."""
        return self.version >= SKIPS_GATHERS_OF_ONE

    def wraps_linear(self, *, zero_init: bool, memory_efficient: bool) -> bool:
        """Whether stage 3's own linear function is in force, which keeps no gathered weight.

        Before #8189 zero.Init alone put it there.
        """
        return memory_efficient and (zero_init or self.version >= WRAPS_GIVEN_MODELS)

    def overflow_bytes(self, numerics: Numerics) -> int:
        """Bytes per element of the largest gradient while it is tested for overflow.

        A copy in fp32 (4), from 0.13 on with three masks and a fourth in fp32 (7 more); from
        0.19.6 on scalars only. Of bf16 gradients from 0.19.3 on, and before 0.12 of all.
        """
        return self.gradient_test_bytes(numerics) if self._tests(numerics) else 0

    def gradient_test_bytes(self, numerics: Numerics) -> int:
        """The same of a test that takes place: of an offloaded gradient in every dtype."""
        if self.version >= SCALAR_OVERFLOW:
            return 0
        copy = 0 if numerics.precision is Precision.FP32 else 4
        return copy + (7 if self.version >= MASKED_OVERFLOW else 0)

    def _tests(self, numerics: Numerics) -> bool:
        if self.version < FP16_CHECKED_ONLY or numerics.precision is Precision.FP16:
            return True
        return self.version >= CHECKS_BF16 and numerics.check_grad_overflow


def how_known(version: Version) -> str:
    """One sentence: what the answer for this release rests on; empty where that release was run."""
    if version in RUN:
        return ""
    if version > RUN[-1]:
        return f"DeepSpeed {version} is newer than {RUN[-1]}, the last one that was measured."
    if version > RUN[0]:
        return f"DeepSpeed {version} was not run; releases before and after it were."
    if version >= FLAT_STAGE3:
        return f"DeepSpeed {version} was not run: its allocations are read from sources."
    return (
        f"DeepSpeed {version} was not run: its buckets are read from sources, everything else of "
        "stages 1 and 3 is taken to be as from 0.6.0 on."
    )
