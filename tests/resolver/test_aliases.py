"""Keys are resolved under any of their names."""

import pytest

import dsconfig

FACTS = dsconfig.gather(model="llama-2-7b", device="a100-80gb", gpus=8)
ALIASES = ("prefetch_bucket_size", "param_persistence_threshold")


@pytest.mark.parametrize("name", ALIASES)
def test_alias_is_resolved_under_its_name(name: str) -> None:
    found = [
        dsconfig.resolve(
            {"train_batch_size": 8, "zero_optimization": {"stage": 3, written: "auto"}}, FACTS
        )
        for written in (name, f"stage3_{name}")
    ]
    short, long = found
    value = long.config["zero_optimization"][f"stage3_{name}"]
    assert isinstance(value, int)
    assert short.config["zero_optimization"] == {"stage": 3, name: value}
    pointers = [[entry.pointer for entry in each.ledger if entry.value == value] for each in found]
    assert pointers == [[f"/zero_optimization/{name}"], [f"/zero_optimization/stage3_{name}"]]
