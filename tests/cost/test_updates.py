"""Memory of an update by torch's optimizers in DeepSpeed, compared with torch's own code.

DeepSpeed hands them one flat tensor, which torch on CUDA updates as a list of one.
"""

from dataclasses import replace
from typing import Any

import pytest

from dsconfig.cost.optimizers import newton_schulz_bytes, optimizer_cost
from dsconfig.runtimes.effective import Named
from dsconfig.schema.optimizers import OPTIMIZER_CLASSES

torch = pytest.importorskip("torch")
ELEMENTS = 4096

DECAYED = {"weight_decay": 0.1}
OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ("AdamW", "Adam", "Adamax", "Adadelta", "NAdam", "RAdam", "RMSprop")),
    *((name, DECAYED) for name in ("AdamW", "Adam", "Adamax", "Adadelta", "NAdam", "RMSprop")),
    ("AdamW", {"amsgrad": True}),
    ("Adagrad", {}),
    ("Adagrad", DECAYED),
    ("SGD", {"momentum": 0.9}),
    ("ASGD", {"t0": 0}),  # the average begins at once
    ("ASGD", {"t0": 0, **DECAYED}),
    ("Rprop", {}),
]


def temporary_tensors(name: str, params: dict[str, Any], *, foreach: bool, tensors: int = 1) -> int:
    """Return the temporary tensors in the third step of an optimizer of equal parameters."""
    from dsengine.observation.memory import LiveBytes

    parameters = [torch.ones(ELEMENTS, requires_grad=True) for _ in range(tensors)]
    optimizer = getattr(torch.optim, name)(parameters, lr=1e-3, foreach=foreach, **params)
    peak = 0
    for _ in range(3):  # the first step creates the states
        for parameter in parameters:
            parameter.grad = torch.randn(ELEMENTS)
        live = LiveBytes(torch.device("cpu"), existing=False)
        states = [state for states in optimizer.state.values() for state in states.values()]
        gradients = [parameter.grad for parameter in parameters]
        existing = [
            tensor
            for tensor in (*parameters, *gradients, *states)
            if isinstance(tensor, torch.Tensor)
        ]
        with live.measure("step", existing):
            optimizer.step()
        peak = live.peaks["step"]
    return round(peak / 4 / ELEMENTS)


@pytest.mark.torch
@pytest.mark.parametrize(("name", "params"), OPTIMIZERS)
def test_flat_partition_is_a_list_of_one_on_cuda(name: str, params: dict[str, Any]) -> None:
    kind = Named(type=name, params={**params, "torch_adam": True})
    cost = optimizer_cost(kind)
    expected = cost.temporaries(ELEMENTS, ELEMENTS, on_cpu=False)
    assert expected == temporary_tensors(name, params, foreach=True) * ELEMENTS


@pytest.mark.torch
@pytest.mark.parametrize(("name", "params"), OPTIMIZERS)
def test_table_matches_torch_without_foreach(name: str, params: dict[str, Any]) -> None:
    scratch = OPTIMIZER_CLASSES[f"torch.{name}"].scratch.given(params)
    assert scratch.alone == temporary_tensors(name, params, foreach=False)
    assert scratch.loops == temporary_tensors(name, params, foreach=False, tensors=3)


@pytest.mark.torch
def test_foreach_is_the_default_only_on_cuda() -> None:
    from torch.optim.optimizer import _default_to_fused_or_foreach
    from torch.utils._foreach_utils import _get_foreach_kernels_supported_devices

    flat = torch.zeros(8, requires_grad=True)
    assert _default_to_fused_or_foreach([flat], differentiable=False) == (False, False)
    assert "cuda" in _get_foreach_kernels_supported_devices()


def test_foreach_updates_all_tensors_at_stage_0_and_flat_partitions_above() -> None:
    cost = optimizer_cost(Named(type="AdamW", params={"torch_adam": True}))
    assert cost.temporaries(1000, 10, on_cpu=False) == 1000
    assert cost.temporaries(1000, 10, on_cpu=True) == 2 * 10


@pytest.mark.parametrize("params", [{"foreach": False}, {"differentiable": True}])
def test_foreach_can_be_disabled(params: dict[str, Any]) -> None:
    cost = optimizer_cost(Named(type="AdamW", params={"torch_adam": True, **params}))
    assert cost.temporaries(1000, 10, on_cpu=False) == 2 * 10


@pytest.mark.parametrize("name", ["AdamW", "torch.optim.AdamW"])
def test_client_adamw_is_torchs(name: str) -> None:
    cost = optimizer_cost(None, name)
    assert not cost.fused
    assert cost.temporaries(1000, 1000, on_cpu=False) == 1000


def test_default_optimizer_is_deepspeeds() -> None:
    cost = optimizer_cost(None)
    assert cost.fused and cost.temporaries(1000, 1000, on_cpu=False) == 0


@pytest.mark.live
@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("shape", [(512, 512), (600, 512), (1024, 512), (512, 2048), (4096, 512)])
def test_newton_schulz_equals_deepspeed(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int], width: int
) -> None:
    """Compare DeepSpeed's code without torch.compile, in the 16-bit dtypes that GPUs support."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    pytest.importorskip("deepspeed")
    from deepspeed.accelerator import get_accelerator
    from deepspeed.runtime.zero.muon.original_muon import muon_update

    from dsengine.observation.memory import LiveBytes

    for dtype in ("fp16", "bf16"):  # independent of what this CPU supports
        monkeypatch.setattr(get_accelerator(), f"is_{dtype}_supported", lambda: True)
    dtype = torch.bfloat16 if width == 2 else torch.float32
    gradient, momentum = torch.randn(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)
    live = LiveBytes(torch.device("cpu"), existing=False)
    with torch.compiler.set_stance("force_eager"), live.measure("update"):
        muon_update(gradient, momentum)
    assert live.peaks["update"] == pytest.approx(newton_schulz_bytes(shape, width), rel=1e-3)


def test_muon_holds_updates_and_gradients() -> None:
    from cost.test_branches import component_bytes, estimated

    for stage in (1, 2, 3):
        more = {"optimizer": {"type": "Muon", "params": {"lr": 1e-3}}}
        zero = {"stage": stage, "reduce_scatter": stage < 3}
        option = estimated(zero, model="gpt2", more=more, device="a100-80gb")
        assert component_bytes(option, "Muon's updates") > 0 or stage < 3
        assert (component_bytes(option, "Muon's staged momentum") > 0) is (stage < 3)


@pytest.mark.live
def test_muons_adam_part_has_four_temporaries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.zero.muon.original_muon import adam_update

    from dsengine.observation.memory import LiveBytes

    gradient, first, second = (torch.ones(ELEMENTS) for _ in range(3))
    live = LiveBytes(torch.device("cpu"), existing=False)
    with live.measure("update"):
        adam_update(gradient, first, second, 2, (0.9, 0.95), 1e-8)
    cost = replace(optimizer_cost(Named(type="Muon", params={})), share_of_adam=1.0)
    assert live.peaks["update"] == 4 * cost.temporaries_below(ELEMENTS)


def test_offloaded_muon_needs_host_memory_for_its_adam_part() -> None:
    from cost.test_branches import estimated

    more = {"optimizer": {"type": "Muon", "params": {"lr": 1e-3}}}
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    option = estimated(zero, model="llama-3-8b", more=more, device="a100-80gb")
    (temporaries,) = [part for part in option.host.components if "temporaries" in part.name]
    tables = 2 * 128_256 * 4096
    assert temporaries.bytes == pytest.approx(16 * tables, rel=1e-3)
