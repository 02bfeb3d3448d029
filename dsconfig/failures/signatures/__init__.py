"""All signatures, by family; a more specific signature precedes a general one."""

from dsconfig.failures.signature import Signature
from dsconfig.failures.signatures import (
    builds,
    checkpoints,
    communication,
    configs,
    cuda,
    launchers,
    memory,
    parameters,
    precision,
    recomputation,
)

FAMILIES = (
    memory,
    recomputation,
    parameters,
    precision,
    cuda,
    configs,
    builds,
    checkpoints,
    communication,
    launchers,
)
SIGNATURES: tuple[Signature, ...] = tuple(
    signature for family in FAMILIES for signature in family.SIGNATURES
)
