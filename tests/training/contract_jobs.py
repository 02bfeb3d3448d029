"""Forwards that ranks compute together, with inputs that fit or do not. Run on every rank."""

import gc
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import dsengine
from training import expert_jobs, sequence_jobs, tensor_jobs
from training.sequence_jobs import LENGTH, sample_batch, settings

Batch = dict[str, Any]


def _tiny(family: str, **changes: Any) -> Any:
    """Return a tiny model of transformers by the name of its class."""
    import transformers as hf

    config = getattr(hf, family.partition("For")[0] + "Config")
    sizes = {
        "vocab_size": sequence_jobs.VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
        "intermediate_size": 48,
        "pad_token_id": 0,
        "use_cache": False,
        "attn_implementation": "sdpa",
    }
    torch.manual_seed(5)
    return getattr(hf, family)(config(**sizes | changes))


def _part(value: Tensor) -> Tensor:
    return value.chunk(dist.get_world_size(), dim=1)[dist.get_rank()].contiguous()


def _without(batch: Batch, name: str) -> Batch:
    return {key: value for key, value in batch.items() if key != name}


def _embedded(call: Any, batch: Batch) -> Any:
    embeddings = call.get_input_embeddings()(batch["input_ids"])
    return call(inputs_embeds=embeddings, position_ids=batch["position_ids"])


def _cached(call: Any, batch: Batch) -> Any:
    cache = call(**batch, use_cache=True).past_key_values
    return call(**batch, past_key_values=cache)


WAYS: dict[str, Callable[[Any, Batch], Any]] = {
    "keywords": lambda call, batch: call(**batch),
    "positional": lambda call, batch: call(batch["input_ids"], None, batch["position_ids"]),
    "embeddings": _embedded,
    "no positions": lambda call, batch: call(**_without(batch, "position_ids")),
    "positional, no positions": lambda call, batch: call(batch["input_ids"]),
    "4-D mask": lambda call, batch: call(
        **batch, attention_mask=torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool)
    ),
    "float mask": lambda call, batch: call(**batch, attention_mask=torch.ones(2, LENGTH // 2)),
    "labels": lambda call, batch: call(**batch, labels=batch["input_ids"]),
    "cache": _cached,
    "encoder": lambda call, batch: call(
        **batch, encoder_hidden_states=torch.ones(2, LENGTH // 2, 32)
    ),
    "mask on one rank": lambda call, batch: call(
        **batch,
        **({"attention_mask": torch.ones(2, LENGTH // 2).long()} if dist.get_rank() else {}),
    ),
    "unequal parts": lambda call, batch: call(
        **{name: value[:, dist.get_rank() :] for name, value in batch.items()}
    ),
}


def divided_forward(way: str, through_module: bool, compiled: bool = False) -> str | float:
    """Return the largest error of the logits of this rank's part, or the error message."""
    batch = _without(sample_batch("causal", 0), "labels")
    with torch.no_grad():
        whole = sequence_jobs.model_of("causal", divided=False)(**batch).logits
    model = sequence_jobs.model_of("causal", divided=True)
    config = settings(1, 1, "SGD", 0.5) | {"sequence_parallel_size": 2}
    engine, *_ = dsengine.initialize(model=model, config=config)
    if compiled:
        engine.compile(backend="eager")
    own = {name: _part(value) for name, value in batch.items()}
    call = engine.module if through_module else engine
    message = ""
    try:
        logits = WAYS[way](call, own).logits
    except ValueError as error:
        message, logits = str(error), call(**own).logits  # the next forward is right
    error = float((logits - _part(whole)).abs().max())
    engine.destroy()
    return message if message and error < 1e-5 else error


def divided_family(family: str, changes: dict[str, Any]) -> float:
    """The same for a family."""
    batch = _without(sample_batch("causal", 0), "labels")
    whole = _tiny(family, **changes).eval()(**batch).logits
    config = settings(1, 1, "SGD", 0.5) | {"sequence_parallel_size": 2}
    engine, *_ = dsengine.initialize(model=_tiny(family, **changes), config=config)
    logits = engine.eval()(**{name: _part(value) for name, value in batch.items()}).logits
    engine.destroy()
    return float((logits - _part(whole)).abs().max())


def refused_family(family: str, after: str, changes: dict[str, Any]) -> str:
    """Return the error of a family's engine or forward; of ``after`` an engine still exists."""
    config = settings(1, 1, "SGD", 0.5) | {"sequence_parallel_size": 2}
    own = {name: _part(value) for name, value in sample_batch("causal", 0).items()}
    engines = list[Any]()
    try:
        if after:
            engines.append(dsengine.initialize(model=_tiny(after), config=config)[0])
        model = _tiny(family, **changes)
        engines.append(dsengine.initialize(model=model, config=config)[0])
        engines[-1].eval()(**_without(own, "labels"))
    except ValueError as error:
        return str(error)
    finally:
        for engine in engines:
            engine.destroy()
    return ""


def beside_divided(has_engine: bool) -> str | float:
    """Return the error of a model with whole samples while an engine divides its own."""
    config = settings(1, 1, "SGD", 0.5)
    batch = _without(sample_batch("left padding", dist.get_rank()), "labels")
    expected = sequence_jobs.model_of("causal", divided=False)(**batch).logits
    divided, *_ = dsengine.initialize(
        model=sequence_jobs.model_of("causal", divided=True),
        config=config | {"sequence_parallel_size": 2},
    )
    model: Any = sequence_jobs.model_of("causal", divided=False)
    engine = dsengine.initialize(model=model, config=config)[0] if has_engine else None
    try:
        return float(((engine or model)(**batch).logits - expected).abs().max())
    except ValueError as error:
        return str(error)
    finally:
        for each in filter(None, (engine, divided)):
            each.destroy()


def engines_in_a_row(count: int) -> list[float]:
    """Return the errors of engines of which each is freed while the next is built."""
    batch = _without(sample_batch("causal", 0), "labels")
    whole = sequence_jobs.model_of("causal", divided=False)(**batch).logits
    own = {name: _part(value) for name, value in batch.items()}
    config = settings(1, 1, "SGD", 0.5) | {"sequence_parallel_size": 2}
    errors, engine = list[float](), list[Any]()
    thresholds = gc.get_threshold()
    gc.set_threshold(50)
    try:
        for _ in range(count):
            model = sequence_jobs.model_of("causal", divided=True)
            engine = list[Any]()  # the engine before is freed by the garbage collector, at any time
            engine.append(dsengine.initialize(model=model, config=config)[0])
            engine.append(engine)
            errors.append(float((engine[0](**own).logits - _part(whole)).abs().max()))
    finally:
        gc.set_threshold(*thresholds)
    engine[0].destroy()
    return errors


def distributed_again(times: int) -> list[float]:
    """Return the errors of one model under engines of which only the last one is not replaced.

    The first two are destroyed before the next one is built, and the third is not.
    """
    batch = _without(sample_batch("causal", 0), "labels")
    model = sequence_jobs.model_of("causal", divided=True)
    whole = sequence_jobs.model_of("causal", divided=False)(**batch).logits
    own = {name: _part(value) for name, value in batch.items()}
    config = settings(1, 1, "SGD", 0.5) | {"sequence_parallel_size": 2}
    errors, engines = list[float](), list[Any]()
    for index in range(times):
        engines.append(dsengine.initialize(model=model, config=config)[0])
        errors.append(float((engines[-1](**own).logits - _part(whole)).abs().max()))
        if index != 2:
            engines[-1].destroy()
    return errors


class OwnConfig(nn.Module):
    """A model whose ``config`` is not that of transformers, and without attention."""

    attends = False

    def __init__(self) -> None:
        super().__init__()
        self.inner = tensor_jobs.model_of("rules")
        self.config = {"hidden_size": 32}

    def forward(self, input_ids: Tensor, position_ids: Tensor, **_: Any) -> Tensor:
        return self.inner(input_ids, position_ids)


def with_own_config(axis: str) -> str:
    """Return the error of a model whose ``config`` is a dict."""
    config = tensor_jobs.config_of("rules", 1, 2)
    if axis == "sequence":
        config = settings(1, 1, "SGD", 0.5) | {"sequence_parallel_size": 2}
    batch = _without(sample_batch("causal", 0), "labels")
    if axis == "sequence":
        batch = {name: _part(value) for name, value in batch.items()}
    try:
        engine, *_ = dsengine.initialize(model=OwnConfig(), config=config)
        engine(**batch)
        engine.destroy()
    except (ValueError, TypeError) as error:
        return str(error)
    return ""


class Dropping(nn.Module):
    """The model of ``tensor_jobs`` with dropout outside of the layers that are split."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tensor_jobs.model_of("rules")
        self.dropout = nn.Dropout(0.5)

    def forward(self, input_ids: Tensor, position_ids: Tensor, **_: Any) -> Tensor:
        inner: Any = self.inner
        x = self.dropout((inner.tokens(input_ids) + inner.positions(position_ids)) * inner.scale)
        for block in inner.blocks:
            x = self.dropout(block(x))
        return inner.head(x)


def _split(model: nn.Module, seed: int) -> Any:
    engine, *_ = dsengine.initialize(model=model, config=tensor_jobs.config_of("rules", 1, 2))
    torch.manual_seed(seed)
    return engine


def with_dropout(steps: int) -> list[float]:
    """Return losses with another random state on each rank, then those with equal states."""
    curves = list[float]()
    for seed in (7 + dist.get_rank(), 7):
        torch.manual_seed(5)
        engine = _split(Dropping(), seed)
        for step in range(steps):
            loss = tensor_jobs.micro_batch_loss(engine, "rules", step)
            engine.backward(loss)
            engine.step()
            curves.append(loss.item())
        engine.destroy()
    return curves


def split_forward(case: str, through_module: bool) -> str:
    """Return the error of a forward whose ranks split layers."""
    batch = _without(sample_batch("causal", dist.get_rank() if case == "samples" else 0), "labels")
    if case == "lengths":
        batch = {name: value[:, dist.get_rank() :] for name, value in batch.items()}
    engine = _split(tensor_jobs.model_of("rules"), 5)
    try:
        (engine.module if through_module else engine)(**batch)
    except ValueError as error:
        return str(error)
    finally:
        engine.destroy()
    return ""


def sampled_tokens() -> list[int]:
    """Return tokens sampled with another random state on each rank."""
    config = tensor_jobs.config_of("causal", 1, 2)
    engine, *_ = dsengine.initialize(model=tensor_jobs.model_of("causal"), config=config)
    torch.manual_seed(7 + dist.get_rank())
    engine.eval()
    found = engine.generate(torch.ones(1, 2).long(), do_sample=True, max_new_tokens=12)
    engine.destroy()
    return found[0].tolist()


def generated_with_experts(through_module: bool) -> int:
    """Return the number of tokens after generating more of them on the second rank."""
    config = expert_jobs.config_of("Mixtral", 1, 2)
    engine, *_ = dsengine.initialize(model=expert_jobs.model_of("Mixtral"), config=config)
    model: Any = (engine.module if through_module else engine).eval()
    new = 1 + 4 * dist.get_rank()
    options: dict[str, Any] = {"max_new_tokens": new, "min_new_tokens": new}
    tokens = [model.generate(torch.ones(1, 2).long(), **options) for _ in range(2)]
    engine.destroy()
    return tokens[1].shape[1]


def generated_alone(stage: int) -> int:
    """Return the number of tokens that only the second rank generates, 0 on the first."""
    model, config = sequence_jobs.model_of("causal", divided=False), settings(stage, 1, "SGD", 0.5)
    engine, *_ = dsengine.initialize(model=model, config=config)
    own: Any = engine.eval().module
    tokens = torch.ones(1, 0)
    if dist.get_rank() == 1:
        tokens = own.generate(torch.ones(1, 2).long(), max_new_tokens=3)
    engine.destroy()
    return tokens.shape[1]


def adapted_forward(way: str) -> str | float:
    """Return what ``divided_forward`` returns for a model with new adapters of peft."""
    import peft

    batch = _without(sample_batch("causal", 0), "labels")
    whole = sequence_jobs.model_of("causal", divided=False)(**batch).logits
    model = sequence_jobs.model_of("causal", divided=True)
    adapted: Any = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM"))
    config = settings(1, 1, "SGD", 0.5) | {"sequence_parallel_size": 2}
    engine, *_ = dsengine.initialize(model=adapted, config=config)
    try:
        own = {name: _part(value) for name, value in batch.items()}
        return float((WAYS[way](engine, own).logits - _part(whole)).abs().max())
    except ValueError as error:
        return str(error)
    finally:
        engine.destroy()
