"""The loader distributes samples as DeepSpeed does and saves its position."""

from collections.abc import Sized
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from dsengine.loop.data import RepeatingLoader, TrainingLoader
from narrowing import of_type


def loaders(world_size: int, samples: int = 48, **options: Any) -> list[TrainingLoader]:
    dataset = TensorDataset(torch.arange(samples))
    options = {"micro_batch": 12 // world_size} | options
    return [
        TrainingLoader(dataset, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]


def global_batches(parts: list[TrainingLoader], count: int) -> list[list[int]]:
    """Return the first ``count`` global batches as sorted sample numbers."""
    iterators = [iter(part) for part in parts]
    return [
        sorted(i for iterator in iterators for i in next(iterator)[0].tolist())
        for _ in range(count)
    ]


def test_ranks_share_a_shuffled_epoch() -> None:
    first, second, *_ = global_batches(loaders(2), 4)
    assert first != list(range(12))
    assert not set(first) & set(second)


def test_every_epoch_has_the_same_order() -> None:
    (loader,) = loaders(1)
    assert [b[0].tolist() for b in loader] == [b[0].tolist() for b in loader]
    assert loader.passes == 2


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_position_resumes_at_any_world_size(world_size: int) -> None:
    saved_by = loaders(2)
    expected = global_batches(loaders(2), 4)[2:]
    iterators = [iter(part) for part in saved_by]
    for _ in range(2):
        for iterator in iterators:
            next(iterator)
    state = saved_by[0].state_dict()
    assert state == {"position": 24, "passes": 0}
    resumed = loaders(world_size)
    for loader in resumed:
        loader.load_state_dict(state)
        assert loader.state_dict() == state
    assert global_batches(resumed, 2) == expected


def test_epoch_after_resumed_one_is_complete() -> None:
    (loader,) = loaders(1)
    loader.load_state_dict({"position": 36, "passes": 3})
    assert len(list(loader)) == 1
    assert loader.passes == 4
    assert len(list(loader)) == 4


def test_resume_after_last_batch_starts_next_epoch() -> None:
    (loader,) = loaders(1)
    loader.load_state_dict({"position": 48, "passes": 0})
    assert loader.state_dict() == {"position": 0, "passes": 1}
    assert len(list(RepeatingLoader(loader).data_iter)) == 4


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_uneven_remainder_is_padded_like_a_full_epoch(
    world_size: int,
) -> None:
    (alone,) = loaders(1, micro_batch=1)
    order = [int(batch[0]) for batch in alone]
    resumed = loaders(world_size, micro_batch=1)
    for loader in resumed:
        loader.load_state_dict({"position": 19, "passes": 0})
    dealt = [[int(batch[0]) for batch in loader] for loader in resumed]
    assert len({len(samples) for samples in dealt}) == 1
    in_turn = [sample for turn in zip(*dealt, strict=True) for sample in turn]
    assert in_turn[: 48 - 19] == order[19:]
    assert in_turn[48 - 19 :] == order[: -29 % world_size]
    assert all(loader.state_dict() == {"position": 0, "passes": 1} for loader in resumed)


def test_drop_last_drops_partial_batches() -> None:
    assert len(loaders(2, samples=46)[0]) == 4
    assert len(loaders(2, samples=46, drop_last=True)[0]) == 3
    sampler = loaders(2, samples=46, drop_last=True)[0].loader.sampler
    assert len(of_type(sampler, Sized)) == 23


def test_custom_sampler_selects_samples_of_a_rank() -> None:
    loader, other = (loaders(2, sampler=list(range(40, 4, -1)))[0] for _ in range(2))
    batches = [batch[0].tolist() for batch in loader]
    assert [i for batch in batches for i in batch] == list(range(40, 4, -1))
    assert len(batches) == len(loader) == 6
    iterator = iter(loader)
    next(iterator)
    other.load_state_dict(loader.state_dict())
    assert other.position == 6
    assert [batch[0].tolist() for batch in other] == batches[1:]
    assert [batch[0].tolist() for batch in other] == batches


def test_unshuffled_samples_keep_their_order() -> None:
    first, second = loaders(2, shuffle=False)
    assert next(iter(first))[0].tolist() == [0, 2, 4, 6, 8, 10]
    assert next(iter(second))[0].tolist() == [1, 3, 5, 7, 9, 11]


def test_repeating_loader_never_ends() -> None:
    (loader,) = loaders(1)
    endless = RepeatingLoader(loader)
    batches = [next(endless)[0].tolist() for _ in range(9)]
    assert batches[0] == batches[4] == batches[8]


def test_post_process_function_gets_batch_and_position() -> None:
    (loader,) = loaders(1)
    calls: list[tuple[int, int]] = []

    def double(batch: Any, state: dict[str, Any]) -> Any:
        assert state["current_difficulties"] == {}
        calls.append((int(batch[0].shape[0]), state["consumed_samples"]))
        return [batch[0] * 2]

    plain = [batch[0].tolist() for batch in loader]
    loader.post_process_func = double
    assert [batch[0].tolist() for batch in loader] == [[2 * i for i in part] for part in plain]
    assert calls == [(12, 12), (12, 24), (12, 36), (12, 48)]
