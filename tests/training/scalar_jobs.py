"""Jobs with parameters that cannot be sharded: without a dimension or without elements."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from dsengine.utils import safe_get_full_fp32_param
from dsengine.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from torch import Tensor, nn

import dsengine


class Scaled(nn.Module):
    """Blocks with a scalar gain and an empty parameter, scalars, one frozen; rank 1 skips one."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.temperature = nn.Parameter(torch.tensor(1.5))
        self.frozen = nn.Parameter(torch.tensor(0.5), requires_grad=False)
        self.sometimes = nn.Parameter(torch.tensor(2.0))

    def forward(self, inputs: Tensor) -> Tensor:
        for block in self.blocks:
            inputs = block(inputs)
        scale = self.temperature.exp() * self.frozen
        if dist.get_rank() == 0:
            scale = scale * self.sometimes
        return (inputs * scale).square().mean()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.gain = nn.Parameter(torch.tensor(0.7))
        self.tokens = nn.Parameter(torch.empty(1, 0, 6))

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = torch.cat([self.tokens.expand(len(inputs), -1, -1), inputs], 1)
        return inputs + self.gain * torch.tanh(self.linear(inputs))


def trained(settings: dict[str, Any], folder: str | None = None) -> dict[str, Any]:
    """Return losses, norms and scalars of a few windows.

    With ``folder`` the run is saved and resumed in between.
    """
    torch.manual_seed(0)
    engine, *_ = dsengine.initialize(model=Scaled(), config=settings)
    result: dict[str, Any] = {"losses": [], "norms": []}
    for step in range(4):
        for micro in range(engine.gradient_accumulation_steps()):
            generator = torch.Generator().manual_seed(100 * step + 10 * micro + dist.get_rank())
            inputs = torch.randn(4, 1, 6, generator=generator)
            loss = engine(inputs.to(engine.module.get_parameter("blocks.0.linear.weight").dtype))
            engine.backward(loss)
            engine.step()
            result["losses"].append(loss.item())
        result["norms"].append(engine.get_global_grad_norm())
        if folder is not None and step == 1:
            engine.save_checkpoint(folder)
            torch.manual_seed(7)
            engine, *_ = dsengine.initialize(model=Scaled(), config=settings)
            engine.load_checkpoint(folder)
    if folder is not None:
        engine.save_16bit_model(folder)
        exported = get_fp32_state_dict_from_zero_checkpoint(folder)
        result["empty"] = [list(value.shape) for value in exported.values() if value.numel() == 0]
    result["scalars"] = _scalars(engine.module.named_parameters())
    return result


def _scalars(named: Iterable[tuple[str, Tensor]]) -> dict[str, float]:
    return {name: value.item() for name, value in named if value.dim() == 0}


def in_16_bits(settings: dict[str, Any]) -> dict[str, Any]:
    """Return losses, the model's dtypes, its scalars and their masters after some windows."""
    torch.manual_seed(0)
    engine, *_ = dsengine.initialize(model=Scaled(), config=settings)
    losses: list[float] = []
    for step in range(4):
        for micro in range(engine.gradient_accumulation_steps()):
            generator = torch.Generator().manual_seed(100 * step + 10 * micro + dist.get_rank())
            inputs = torch.randn(4, 1, 6, generator=generator)
            loss = engine(inputs.to(next(engine.module.parameters()).dtype))
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    return {
        "losses": losses,
        "dtypes": sorted({str(p.dtype) for p in engine.module.parameters()}),
        "scalars": _scalars(engine.module.named_parameters()),
        "masters": _masters(engine),
    }


def _masters(engine: Any) -> dict[str, float]:
    scalars = {n: p for n, p in engine.module.named_parameters() if p.dim() == 0}
    return {name: safe_get_full_fp32_param(value).item() for name, value in scalars.items()}


def written_scalar(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the master of a scalar after it is gathered, written, loaded and trained."""
    model = Scaled()
    with torch.no_grad():
        model.temperature.fill_(1.2345678)
    engine, *_ = dsengine.initialize(model=model, config=settings)
    scalar = model.temperature

    def both() -> list[float]:
        return [_masters(engine)["temperature"], scalar.item()]

    before, rounded = both()
    with dsengine.zero.GatheredParameters([scalar], modifier_rank=0):
        pass
    result: dict[str, Any] = {"before": before, "rounded": rounded, "left alone": both()[0]}
    with dsengine.zero.GatheredParameters([scalar], modifier_rank=0):
        scalar.data.fill_(0.25 + dist.get_rank())
    result["gathered"] = both()
    model.load_state_dict({"temperature": torch.tensor(0.375)}, strict=False, assign=True)
    result["loaded"] = both() if model.temperature is scalar else None
    given = {name: torch.full((), 0.5 + i) for i, name in enumerate(_masters(engine))}
    model.load_state_dict(given, strict=False)
    result["loaded at once"] = [
        [value.item() for value in given.values()],
        [*_masters(engine).values()],
    ]
    scalar.data.clamp_(max=0.25)
    inputs = torch.ones(4, 1, 6, dtype=scalar.dtype)
    engine.backward(engine(inputs))
    engine.step()
    result["clamped"] = _masters(engine)["temperature"]
    model.load_state_dict({"temperature": torch.tensor(0.375)}, strict=False)
    del engine
    again = {key: value for key, value in settings.items() if key != "bf16"}
    engine, *_ = dsengine.initialize(model=model, config=again)
    result["next engine"] = [model.temperature.item(), str(model.temperature.dtype)]
    return result


def under_zero_init(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the dtypes of a zero.Init model before the engine, and its exact masters."""
    with dsengine.zero.Init(config_dict_or_path=settings):
        model = Scaled()
        with torch.no_grad():
            model.temperature.fill_(1.2345678)
    dtypes = sorted({str(p.dtype) for p in model.parameters()})
    with torch.no_grad():
        model.sometimes.copy_(torch.tensor(2.3456789))
    engine, *_ = dsengine.initialize(model=model, config=settings)
    found = _masters(engine)
    masters = [found[name] for name in ("temperature", "sometimes", "blocks.0.gain")]
    return {"dtypes": dtypes, "masters": masters, "built": [1.2345678, 2.3456789, 0.7]}


def resumed_from_deepspeed(settings: dict[str, Any], folder: str) -> dict[str, Any]:
    """Return scalars of a run and of one resumed from DeepSpeed's format; one group is empty."""

    def engine_of(seed: int) -> Any:
        torch.manual_seed(seed)
        model = Scaled()
        groups = [{"params": []}, {"params": [p for p in model.parameters() if p.requires_grad]}]
        optimizer = torch.optim.AdamW(groups, lr=0.01)
        return dsengine.initialize(model=model, optimizer=optimizer, config=settings)[0]

    def stepped(engine: Any, *steps: int) -> list[float]:
        for step in steps:
            inputs = torch.randn(4, 1, 6, generator=torch.Generator().manual_seed(step))
            engine.backward(
                engine(inputs.to(engine.module.get_parameter("blocks.0.linear.weight").dtype))
            )
            engine.step()
        return [p.item() for p in engine.module.parameters() if p.dim() == 0]

    engine = engine_of(0)
    engine.checkpointer().for_deepspeed = True
    engine.save_checkpoint(folder, tag="begun")
    stepped(engine, 0, 1)
    engine.save_checkpoint(folder, tag="on the way")
    expected = stepped(engine, 2, 3)
    engine.destroy()
    engine = engine_of(7)
    engine.load_checkpoint(folder, tag="begun")
    result = stepped(engine, 0, 1, 2, 3)
    engine.load_checkpoint(folder, tag="on the way")
    return {"expected": expected, "from the start": result, "scalars": stepped(engine, 2, 3)}
