"""Differences of earlier DeepSpeed releases in what they allocate.

Found in the sources of 0.3.16, 0.4.0, 0.5.10, 0.6.7, 0.7.7, 0.12.6, 0.13.5, 0.14.0, 0.14.5, 0.16.9,
0.17.6, 0.18.9, 0.19.2, 0.19.5, 0.19.6 and 0.19.7 compared with 0.19.8; the 4.5 in the history of
DeepSpeed (commits 41db1c2f0 and cfa63f5da). If the two releases around a change are far apart, the
later one is used here. ``RUN``: releases that were run with their live tensors counted.

Default values that changed (contiguous_gradients 0.4.3, sub_group_size 0.4.1, pin_memory 0.19.5,
check_grad_overflow 0.19.3, immediate_grad_update 0.16.5 to 0.17.0) are declared in the schema.
"""

from dsconfig.runtimes.effective import Numerics, Precision
from dsconfig.schema.version import PUBLISHED, Version

RUN = tuple(map(Version.parse, ("0.14.5", "0.16.9", "0.18.9", "0.19.6", "0.19.7", "0.19.8")))
PLAIN_BUCKETS = Version(0, 4, 0)
FLAT_STAGE3 = Version(0, 6, 0)
"""Stage 3's bucket exists for the entire run; before, it was made in each backward, and twice with
overlap_comm."""
MASKED_OVERFLOW = Version(0, 13, 0)
FP16_CHECKED_ONLY = Version(0, 12, 0)
STAGE3_BUCKET_FOLLOWS_WIRE = Version(0, 17, 0)
"""Its elements have the communication dtype; before, that of the model."""
CHECKS_BF16 = Version(0, 19, 3)
SCALAR_OVERFLOW = Version(0, 19, 6)
EXACT_FP32_SUMS = Version(0, 19, 8)
"""fp32 accumulation at stage 2 keeps fp32 sums; before, it kept 16 bits."""
CASTS_MASTERS_ON_DEVICE, COPIES_16_BIT_AGAIN = Version(0, 14, 1), Version(0, 17, 0)
"""Between them (#5301 and #7309) ZeRO-Offload's step copies the fp32 masters to the device to cast
them there; before and after it copies into the 16-bit weights."""
FLATTENS_ON_DEVICE = Version(0, 18, 7)
"""Stages 1 and 2 flatten the weights on the device if it can hold both copies (#7828); before, and
otherwise, in host memory."""
GATHERS_IN_PLACE = Version(0, 18, 5)
"""A gather of a single parameter fills it in place; before #7661 through a buffer of its size."""
SKIPS_GATHERS_OF_ONE = Version(0, 9, 0)
"""A single rank uses its shards in place, and gathers nothing (#2953)."""
WRAPS_GIVEN_MODELS = Version(0, 19, 4)
"""Stage 3's own linear function, which keeps no gathered weight, is used for every model; before
#8189 only zero.Init installed it."""


def _just_before(version: Version) -> Version:
    """Return the preceding release; for a minor release, the last patch of the previous one."""
    if version.patch:
        return version._replace(patch=version.patch - 1)
    return max(each for each in PUBLISHED if each < version)


BEFORE_CHANGES = tuple(
    map(_just_before, (SCALAR_OVERFLOW, FLATTENS_ON_DEVICE, COPIES_16_BIT_AGAIN, MASKED_OVERFLOW))
)
"""The last releases before the memory of common configs changed, newest first."""


def bucket_elements(version: Version, size: int, stage: int) -> int:
    """Return the elements of a reduce bucket below stage 3: at stage 2 4.5 times as many before
    0.4.0."""
    return size * 9 // 2 if stage == 2 and version < PLAIN_BUCKETS else size


def overflow_bytes(version: Version, numerics: Numerics) -> int:
    """Return the bytes per element of the largest gradient while it is tested for overflow.

    A copy in fp32 (4), from 0.13 on with three masks and a fourth in fp32 (7 more); from 0.19.6 on
    scalars only. For bf16 gradients from 0.19.3 on, and before 0.12 for all.
    """
    is_tested = version < FP16_CHECKED_ONLY or numerics.precision is Precision.FP16
    if is_tested or (version >= CHECKS_BF16 and numerics.check_grad_overflow):
        return gradient_test_bytes(version, numerics)
    return 0


def gradient_test_bytes(version: Version, numerics: Numerics) -> int:
    """Return the same for a test that always runs: of an offloaded gradient in every dtype."""
    if version >= SCALAR_OVERFLOW:
        return 0
    copy = 0 if numerics.precision is Precision.FP32 else 4
    return copy + (7 if version >= MASKED_OVERFLOW else 0)


def how_known(version: Version) -> str:
    """Return what the answer for this release is based on; empty if that release was run."""
    if version in RUN:
        return ""
    if version > RUN[-1]:
        return f"DeepSpeed {version} is newer than {RUN[-1]}, the latest measured release."
    if version > RUN[0]:
        return f"DeepSpeed {version} was not measured; releases before and after it were."
    if version >= FLAT_STAGE3:
        return f"DeepSpeed {version} was not measured: its allocations are from its source."
    return (
        f"DeepSpeed {version} was not measured: its buckets are from its source; the rest "
        "of stages 1 and 3 is assumed to be as from 0.6.0 on."
    )
