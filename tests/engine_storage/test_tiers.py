"""An optimizer in host memory or on NVMe trains like one on the device."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from dsconfig.tiles import COPIED_ELEMENTS, STAGING_BYTES, host_share, tile_elements
from dsengine.observation.memory import LiveBytes
from dsengine.optimizers.binding import proves_elementwise
from dsengine.optimizers.lion import Lion
from dsengine.tiers import OffloadedBinding
from dsengine.tiers.files import ALIGNMENT, Buffer, FileIO, UnnamedFile, fresh_directory, wait
from dsengine.tiers.tiles import Piece, divide_into_tiles
from engine_storage.offloading import offload_settings
from sweeps import sweep
from training.ranks import Ranks, SharedRanks

JOBS = "engine_storage.jobs.tiers"


def test_tiles_have_equal_size() -> None:
    tiles = divide_into_tiles({"a": 3, "b": 4, "none": 0, "c": 9}, 6)
    assert [tile.elements for tile in tiles] == [6, 6, 4]
    assert tiles[0].pieces == (Piece("a", 0, 3, last=True), Piece("b", 0, 3, last=False))
    assert [piece.name for piece in tiles[1].pieces] == ["b", "none", "c"]
    assert torch.equal(tiles[2].pieces[0].of(torch.arange(9).view(3, 3)), torch.arange(5, 9))


@pytest.mark.parametrize(("ratio", "kept"), [(1.0, ""), (0.5, "ab"), (0.3, "ab"), (0.0, "abcd")])
def test_first_elements_stay_on_the_device(ratio: float, kept: str) -> None:
    on_device, on_host = host_share({"a": 1, "b": 3, "c": 3, "d": 1}, ratio)
    assert ["".join(on_device), "".join(on_host)] == [kept, "abcd".removeprefix(kept)]


@pytest.mark.parametrize(("requested", "segments", "expected"), [(10, 3, 10), (10**9, 1, 2**26)])
def test_tile_fits_staging_buffer(requested: int, segments: int, expected: int) -> None:
    assert tile_elements(requested, segments) == expected
    assert tile_elements(10**9, 3) * 3 * 4 <= STAGING_BYTES < (tile_elements(10**9, 3) + 1) * 12


@pytest.mark.parametrize("threads", [1, 4])
def test_tile_reads_back_from_its_file(tmp_path: Path, threads: int) -> None:
    size = 5 * ALIGNMENT + 12
    file, buffer, io = UnnamedFile(tmp_path / "tile", size), Buffer(size), FileIO(threads, 5000)
    buffer.elements.copy_(torch.arange(buffer.elements.numel()))
    wait(io.exchange(buffer, write=file.extent))
    expected = buffer.elements.clone()
    buffer.elements.zero_()
    wait(io.exchange(buffer, read=file.extent))
    assert torch.equal(buffer.elements, expected)
    assert buffer.elements.data_ptr() % ALIGNMENT == 0
    io.close()
    file.close()


def test_files_of_an_earlier_run_are_removed(tmp_path: Path) -> None:
    directory = fresh_directory(str(tmp_path), "optimizer", 10)
    (directory / "tile0").write_text("old")
    assert list(fresh_directory(str(tmp_path), "optimizer", 10).iterdir()) == []


def test_insufficient_space_is_reported_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nvme_path"):
        fresh_directory(str(tmp_path), "optimizer", 2**60)


@pytest.fixture(scope="module")
def result(ranks_of: SharedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = str(tmp_path_factory.mktemp("tiers"))
    return ranks_of(2).run(f"{JOBS}:optimizer_on_every_tier", folder=folder)[0]


@pytest.mark.engine
def test_losses_equal_those_without_offload(result: dict[str, Any]) -> None:
    assert len(result["runs"]) == 2 + 6 + 6 + 2 * 2 * 2
    for name, (expected, got) in result["runs"].items():
        # The last loss follows a change of 16-bit shards, if there are any.
        exact = 7 if "bf16" in name else 8
        assert got[:exact] == pytest.approx(expected[:exact], rel=1e-6), name
        assert got[exact:] == pytest.approx(expected[exact:], rel=1e-2), name
    assert result["shards in bf16"]


@pytest.mark.engine
def test_parameter_offload_keeps_losses(ranks: Ranks, tmp_path: Path) -> None:
    result = ranks.run(f"{JOBS}:parameter_offload", folder=str(tmp_path))[0]
    device, *others = result["parameters"]
    assert len(others) == 4
    for other in others:
        assert other == pytest.approx(device, rel=1e-6)
    assert result["bytes in files"] > 0


@pytest.mark.engine
@sweep(1, stage=[1, 2, 3], precision=["fp32", "bf16", "fp16"], accumulation=[1, 4])
def test_losses_norms_and_scales_equal_those_without_offload(
    ranks: Ranks, tmp_path: Path, stage: int, precision: str, accumulation: int
) -> None:
    job = {"stage": stage, "precision": precision, "accumulation": accumulation}
    result = ranks.run(f"{JOBS}:curves", **job, folder=str(tmp_path))[0]
    expected = result.pop("none")
    assert len(result) == (7 if stage == 3 else 2)
    overflows = range(1, 5) if precision == "fp16" else [0]
    assert expected["skipped"] in overflows, "some steps overflow, not all"
    # In 16 bits, stage 1 reduces each micro step, not their sum.
    tolerance = 1e-2 if precision != "fp32" and stage == 1 and accumulation > 1 else 1e-6
    for name, got in result.items():
        assert got["skipped"] == expected["skipped"], name
        assert got["on the device"] == [], name
        for step, reference in zip(got["steps"], expected["steps"], strict=True):
            assert step == pytest.approx(reference, rel=tolerance), name


@pytest.mark.engine
def test_gradients_are_freed_after_backward(ranks: Ranks) -> None:
    for rank in ranks.run(f"{JOBS}:left_in_backward"):
        for stage, parameters in rank.items():
            assert [left for left, _ in parameters] == [0, 0, 0], stage
            first, second, after_the_step = (count for _, count in parameters)
            assert first == second > 0 == after_the_step, stage


@pytest.mark.engine
def test_files_are_removed_automatically(result: dict[str, Any]) -> None:
    assert result["left on disk"] == []


@pytest.mark.engine
def test_non_elementwise_optimizer_is_refused(ranks: Ranks) -> None:
    for message in ranks.run(f"{JOBS}:refused"):
        assert "Adafactor, Lamb and Muon do not support optimizer offload" in message


OPTIMIZERS: dict[str, Any] = {
    "Adam": {"lr": 0.1, "amsgrad": True},
    "AdamW": {"lr": 0.1, "weight_decay": 0.1},
    "Adagrad": {"lr": 0.1, "initial_accumulator_value": 0.5},
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "RMSprop": {"lr": 0.1, "centered": True, "momentum": 0.5},
    "NAdam": {"lr": 0.1},
    "RAdam": {"lr": 0.1},
    "Adamax": {"lr": 0.1},
    "Adadelta": {"lr": 0.1},
    "ASGD": {"lr": 0.1},
    "Rprop": {"lr": 0.1},
    "Lion": {"lr": 0.1},
}


def weights() -> dict[str, nn.Parameter]:
    torch.manual_seed(3)
    shapes = {"a": (30, 40), "scalar": (), "b": (500,), "unused": (20,), "c": (70, 30)}
    return {name: nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}


def path_of(tier: str, folder: Path) -> str | None:
    return str(folder) if tier == "nvme" else None


def optimizer_of(kind: str, parameters: dict[str, nn.Parameter]) -> torch.optim.Optimizer:
    """Build two groups; Adam has one more state in the second."""
    options = dict(OPTIMIZERS[kind])
    late = {"amsgrad": options.pop("amsgrad")} if "amsgrad" in options else {}
    first, second = (
        [parameters["a"], parameters["b"]],
        [parameters["scalar"], parameters["unused"], parameters["c"]],
    )
    groups: list[dict[str, Any]] = [{"params": first}, {"params": second, "lr": 0.05, **late}]
    return (Lion if kind == "Lion" else getattr(torch.optim, kind))(groups, **options)


def backward(parameters: dict[str, nn.Parameter], step: int) -> None:
    used = [weight for name, weight in parameters.items() if name != "unused"]
    factors = [torch.linspace(-1, 1, w.numel()).view(w.shape) + step for w in used]
    losses = [(w.square() * f).sum() for w, f in zip(used, factors, strict=True)]
    torch.stack(losses).sum().backward()


def test_step_hooks_run_once_around_all_tiles() -> None:
    parameters = weights()
    optimizer = optimizer_of("SGD", parameters)
    binding = OffloadedBinding(optimizer, parameters, offload_settings(sub_group_size=400), {})
    assert len(binding.host_tiles) > 5
    before = {name: weight.detach().clone() for name, weight in parameters.items()}
    seen: list[list[bool]] = []

    def note(*_: Any) -> None:
        seen.append([torch.equal(before[name], parameters[name]) for name in ("a", "b", "c")])

    handles = [
        optimizer.register_step_pre_hook(note),
        optimizer.register_step_post_hook(note),
        register_optimizer_step_post_hook(note),
    ]
    backward(parameters, 0)
    step_of(binding)
    assert seen == [[True] * 3, [False] * 3, [False] * 3]
    for handle in handles:
        handle.remove()
    backward(parameters, 1)
    step_of(binding)
    assert len(seen) == 3
    binding.close()


@pytest.mark.parametrize("tier", ["cpu", "nvme"])
def test_parameter_unfrozen_later_is_trained(tmp_path: Path, tier: str) -> None:
    parameters = weights()
    parameters["b"].requires_grad_(False)
    settings = offload_settings(nvme_path=path_of(tier, tmp_path))
    binding = OffloadedBinding(optimizer_of("AdamW", parameters), parameters, settings, {})
    before = parameters["b"].detach().clone()
    backward(parameters, 0)
    step_of(binding)
    assert torch.equal(parameters["b"], before) and not parameters["b"].requires_grad
    parameters["b"].requires_grad_(True)
    backward(parameters, 1)
    step_of(binding)
    assert not torch.equal(parameters["b"], before)
    binding.close()


@pytest.mark.parametrize("tier", ["cpu", "nvme"])
def test_first_step_creates_states_in_small_pieces(tmp_path: Path, tier: str) -> None:
    elements = 6 * COPIED_ELEMENTS
    parameters = {"w": nn.Parameter(torch.zeros(elements))}
    settings = offload_settings(nvme_path=path_of(tier, tmp_path))
    binding = OffloadedBinding(
        torch.optim.AdamW([parameters["w"]], fused=True), parameters, settings, {}
    )
    parameters["w"].sum().backward()
    live = LiveBytes(torch.device("cpu"))
    with live.measure("step"):
        step_of(binding)
    assert live.peaks["step"] - live.at_exit["step"] <= 4 * 2 * COPIED_ELEMENTS + 2**16
    binding.close()


@pytest.mark.parametrize("tier", ["cpu", "nvme"])
def test_value_set_in_master_and_shard_is_not_rounded(tmp_path: Path, tier: str) -> None:
    parameters = {"w": nn.Parameter(torch.zeros(5, dtype=torch.bfloat16))}
    settings = offload_settings(nvme_path=path_of(tier, tmp_path))
    binding = OffloadedBinding(torch.optim.SGD([parameters["w"]], lr=0.1), parameters, settings, {})
    exact = torch.linspace(1.0, 1.01, 5)
    with torch.no_grad(), binding.materialized():
        parameters["w"].copy_(exact)
        binding.shards["w"].copy_(exact)
    binding.mark_in_sync("w")
    parameters["w"].grad = torch.zeros_like(parameters["w"])
    binding.offloaded_gradients._receive("w")
    step_of(binding)
    with binding.materialized():
        assert torch.equal(binding.shards["w"], exact)
    binding.close()


@pytest.mark.parametrize("tier", ["cpu", "nvme"])
def test_materialized_masters_include_writes_to_shards(tmp_path: Path, tier: str) -> None:
    parameters = weights()
    settings = offload_settings(sub_group_size=400, nvme_path=path_of(tier, tmp_path))
    binding = OffloadedBinding(optimizer_of("AdamW", parameters), parameters, settings, {})
    parameters["c"].detach().mul_(0.5)
    with binding.materialized():
        assert torch.equal(binding.shards["c"], parameters["c"])
    binding.close()


def test_options_changed_later_create_states_for_every_tile() -> None:
    expected, got = weights(), weights()
    plain, tiled = (torch.optim.SGD(w.values(), lr=0.1) for w in (expected, got))
    binding = OffloadedBinding(tiled, got, offload_settings(sub_group_size=400), {})
    for step in range(4):
        if step == 1:
            plain.param_groups[0]["momentum"] = tiled.param_groups[0]["momentum"] = 0.9
        for parameters in (expected, got):
            backward(parameters, step)
        plain.step()
        plain.zero_grad()
        step_of(binding)
    for name, weight in expected.items():
        torch.testing.assert_close(got[name], weight)
    binding.close()


def test_state_without_file_segment_is_refused(tmp_path: Path) -> None:
    parameters = weights()
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
    binding = OffloadedBinding(optimizer, parameters, offload_settings(nvme_path=str(tmp_path)), {})
    refusal = "no segment for momentum_buffer: set the options in optimizer.params"
    with binding.as_sharded(), pytest.raises(ValueError, match=refusal):
        binding.load_target("a", "momentum_buffer", parameters["a"].shape)
    optimizer.param_groups[0]["momentum"] = 0.9
    before = parameters["a"].detach().clone()
    backward(parameters, 0)
    with pytest.raises(ValueError, match=refusal):
        step_of(binding)
    assert torch.equal(parameters["a"], before)
    binding.close()


def step_of(binding: OffloadedBinding) -> None:
    binding.offloaded_gradients.accumulate_late()
    binding.gradients(iter(binding.offloaded_gradients.items()))
    binding.step()
    binding.drop_gradients()
    binding.offloaded_gradients.clear()


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("tier", ["cpu", "nvme"])
@pytest.mark.parametrize(("sub_group_size", "ratio"), [(400, 1.0), (500, 0.6), (10_000, 1.0)])
def test_tiled_step_equals_full_step(
    tmp_path: Path, kind: str, tier: str, sub_group_size: int, ratio: float
) -> None:
    expected, got = weights(), weights()
    plain, tiled = optimizer_of(kind, expected), optimizer_of(kind, got)
    settings = offload_settings(
        sub_group_size=sub_group_size,
        ratio=ratio,
        nvme_path=path_of(tier, tmp_path),
        buffer_count=3,
    )
    binding = OffloadedBinding(tiled, got, settings, {})
    for step in range(4):
        if step == 2:  # external write, used by every piece
            for parameters in (expected, got):
                parameters["c"].detach().mul_(0.5)
        for parameters in (expected, got):
            backward(parameters, step)
        plain.step()
        plain.zero_grad()
        step_of(binding)
    for name, weight in expected.items():
        torch.testing.assert_close(got[name], weight, msg=lambda text, name=name: f"{name}: {text}")
    with binding.as_sharded():
        for name, weight in expected.items():
            state = tiled.state.get(binding.sharded_parts[name]) or {}
            assert state.keys() == plain.state[weight].keys()
            for key, value in plain.state[weight].items():
                torch.testing.assert_close(state[key], value)
    for group, before in zip(tiled.param_groups, plain.param_groups, strict=True):
        names = [name for param in before["params"] for name in expected if expected[name] is param]
        assert group["params"] == [binding.shards[name] for name in names]
        assert group.get("fused") == before.get("fused")
    binding.close()


class Signs(Optimizer):
    """Steps by the sign of each gradient, times its norm if that exceeds ``norm``."""

    def __init__(self, parameters: Any, lr: float, norm: float = math.inf) -> None:
        super().__init__(parameters, {"lr": lr, "norm": norm})

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for param in group["params"]:
                torch.rand(1)
                size = param.grad.norm()
                size = size if size > group["norm"] else 1.0
                state = self.state[param]
                state["sum"] = state.get("sum", 0.0) + param.grad.sign() * size
                param.add_(state["sum"], alpha=-group["lr"])


def test_custom_optimizer_is_tested_for_elementwise_updates() -> None:
    random = torch.get_rng_state()
    parameters = [nn.Parameter(torch.zeros(2))]
    assert proves_elementwise(Signs(parameters, lr=0.1))
    assert proves_elementwise(Signs(parameters, lr=0.0))
    for rate, norm in ((0.1, 0.0), (1e-9, 0.0), (0.1, 1000.0)):
        assert not proves_elementwise(Signs(parameters, lr=rate, norm=norm))
    groups = [{"params": parameters}, {"params": [nn.Parameter(torch.zeros(2))], "norm": 0.0}]
    assert not proves_elementwise(Signs(groups, lr=0.1))
    assert not proves_elementwise(torch.optim.Adafactor(parameters))
    assert parameters[0].eq(0).all() and torch.equal(torch.get_rng_state(), random)
