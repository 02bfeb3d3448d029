"""Jobs with input that cannot be divided along the sequence. Run on every rank."""

from typing import Any

import torch
import torch.distributed as dist
from dsengine.runtime.sequence_parallel import parallel_state_sp

import dsengine
from dsengine.parallel.loader import SequenceLoader as UlyssesSPDataLoaderAdapter
from dsengine.parallel.transformers_attention import restore_if_unused
from training import sequence_jobs


def loaded(positions: bool, lengths: list[int]) -> Any:
    """Draw two batches per rank through the loader; return all parts, or the
    error message. ``lengths``: of the sequences, by rank."""
    parallel_state_sp.initialize_sequence_parallel(2)
    rank = dist.get_rank()
    length, draws = lengths[rank], 2
    tokens = torch.arange(draws * length).reshape(draws, 1, length) + 100 * rank
    samples: list[dict[str, Any]] = [
        {"input_ids": each, "labels": each.clone(), "name": f"rank {rank}"} for each in tokens
    ]
    for sample in samples if positions else ():
        sample["position_ids"] = torch.arange(length)[None]
    group = parallel_state_sp.get_sequence_parallel_group()
    loader = UlyssesSPDataLoaderAdapter(samples, rank % 2, group, 2, "cpu")
    return _parts(loader)


def uneven() -> Any:
    """Draw from loaders of which the second has one batch less."""
    parallel_state_sp.initialize_sequence_parallel(2)
    rank, group = dist.get_rank(), parallel_state_sp.get_sequence_parallel_group()
    row = torch.arange(4)[None]
    sample = {"input_ids": row, "labels": row, "position_ids": row, "name": f"rank {rank}"}
    return _parts(UlyssesSPDataLoaderAdapter([sample] * (2 - rank), rank, group, 2, "cpu"))


def _parts(loader: Any) -> Any:
    try:
        return [
            (part["name"], part["input_ids"].tolist(), part["shift_labels"].tolist())
            for part in loader
        ]
    except ValueError as error:
        return str(error)


def started(degrees: list[int], kind: str = "causal") -> str:
    """Divide samples over as many ranks as each rank has in ``degrees``; return the error."""
    try:
        model, mpu = sequence_jobs.divided_model(kind, degrees[dist.get_rank()])
        config = sequence_jobs.settings(1, 1, "SGD", clip=0.5)
        dsengine.initialize(model=model, config=config, mpu=mpu)
    except ValueError as error:
        return str(error)
    finally:
        restore_if_unused()
    return ""


def configured(degrees: list[int]) -> str:
    """The same with the key ``sequence_parallel_size``."""
    degree = {"sequence_parallel_size": degrees[dist.get_rank()]}
    config = sequence_jobs.settings(1, 1, "SGD", clip=0.5) | degree
    try:
        dsengine.initialize(model=sequence_jobs.model_of("causal", divided=True), config=config)
    except ValueError as error:
        return str(error)
    return ""
