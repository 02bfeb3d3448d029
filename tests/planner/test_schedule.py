"""Schedule of gathering, resharding and prefetching."""

from hypothesis import given
from hypothesis import strategies as st

from dsconfig.runtimes.effective import Zero
from dsconfig.unit_schedule import schedule
from dsconfig.units import Unit

EVERYTHING = 10**9
STAGE_3 = Zero(
    stage=3,
    param_persistence_threshold=0,
    max_reuse_distance=0,
    prefetch_bucket_size=0,
    max_live_parameters=EVERYTHING,
)


def chain(*elements: int) -> tuple[list[Unit], dict[str, int]]:
    """Units of one parameter each, used in the order given."""
    units = [
        Unit(
            modules=(f"m{index}",),
            elements=count,
            parameters=(f"m{index}.weight",),
        )
        for index, count in enumerate(elements)
    ]
    return units, {f"m{index}.weight": count for index, count in enumerate(elements)}


def with_zero(**changes: int) -> Zero:
    from dataclasses import replace

    return replace(STAGE_3, **changes)


def test_parameters_stay_unsharded_below_stage_3() -> None:
    planned = schedule(*chain(10, 20), Zero(stage=2))
    assert [(unit.gather, unit.reshard_after_forward) for unit in planned] == [(False, False)] * 2


def test_stage_3_gathers_and_reshards_units() -> None:
    planned = schedule(*chain(10, 20), STAGE_3)
    assert [(unit.gather, unit.reshard_after_forward) for unit in planned] == [(True, True)] * 2


def test_small_units_persist_up_to_model_threshold() -> None:
    zero = with_zero(param_persistence_threshold=20, model_persistence_threshold=25)
    planned = schedule(*chain(10, 20, 30), zero)
    assert [unit.gather for unit in planned] == [False, True, True]


def test_units_reused_soon_stay_gathered() -> None:
    planned = schedule(*chain(10, 10, 10, 10), with_zero(max_reuse_distance=40))
    assert [unit.reshard_after_forward for unit in planned] == [True, True, False, False]


def test_hpz_reshards_to_smaller_group() -> None:
    planned = schedule(*chain(10, 10), with_zero(hpz_partition_size=4))
    assert [unit.reshard_after_forward for unit in planned] == [4, 4]


def test_prefetch_is_limited_by_bucket() -> None:
    planned = schedule(*chain(10, 10, 10, 10), with_zero(prefetch_bucket_size=20))
    assert [unit.prefetch for unit in planned] == [(1, 2), (2, 3), (3,), ()]


def test_prefetch_is_limited_by_live_parameters() -> None:
    zero = with_zero(prefetch_bucket_size=EVERYTHING, max_live_parameters=25)
    planned = schedule(*chain(10, 10, 10), zero)
    assert [unit.prefetch for unit in planned] == [(1,), (2,), ()]


@given(
    st.lists(st.integers(1, 100), min_size=1, max_size=12),
    st.integers(0, 300),
    st.integers(0, 300),
    st.integers(0, 300),
)
def test_prefetch_grows_with_limits(elements: list[int], bucket: int, more: int, live: int) -> None:
    def ahead(size: int) -> list[int]:
        zero = with_zero(prefetch_bucket_size=size, max_live_parameters=live)
        return [len(unit.prefetch) for unit in schedule(*chain(*elements), zero)]

    assert all(less <= more for less, more in zip(ahead(bucket), ahead(bucket + more), strict=True))
