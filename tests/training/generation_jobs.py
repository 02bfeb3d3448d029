"""Jobs that generate between training steps. Each function runs on every rank."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

import dsengine
from dsengine.communication.exchange import UnitAllGather
from dsengine.torch_private.tensors import replaced
from training import models
from training.jobs import config, window

LLAMA: dict[str, Any] = models.LLAMA | {"pad_token_id": 0}
PROMPT, SAMPLES = 5, 3


class Generating(models.Tied):
    """A model whose ``generate`` runs one forward per token."""

    def generate(self, ids: Tensor, tokens: int) -> list[float]:
        return [self(ids).item() for _ in range(tokens)]


@contextmanager
def counted_gathers() -> Iterator[list[int]]:
    """Yield a list of the sizes of the gathers of units that begin inside."""
    sizes: list[int] = []
    original = UnitAllGather.__call__

    def gather(self: Any, **kwargs: Any) -> Any:
        sizes.append(kwargs["output_tensor"].numel())
        return original(self, **kwargs)

    with replaced(UnitAllGather, "__call__", gather):
        yield sizes


def gathers(settings: dict[str, Any], gather_once: bool | None) -> dict[str, Any]:
    """Return the gathers of generating 1 and 9 tokens, the results, and losses around them."""
    torch.manual_seed(0)
    engine, *_ = dsengine.initialize(model=Generating(), config=settings)
    losses = [window(engine, 0)]
    ids = models.batch(0, 0, 0)
    counts: list[int] = []
    results: list[float] = []
    for tokens in (1, 9):
        with counted_gathers() as sizes:
            results += engine.generate(ids, tokens, gather_once=gather_once)
        counts.append(len(sizes))
    with torch.no_grad(), counted_gathers() as sizes:
        results.append(engine(ids).item())
    losses.append(window(engine, 1))
    engine.destroy()
    return {"counts": counts, "results": results, "forward": len(sizes), "losses": losses}


def unequal(settings: dict[str, Any]) -> dict[str, Any]:
    """Generate more tokens on rank 1 than on rank 0, with an error on it, and train between."""
    torch.manual_seed(0)
    engine, *_ = dsengine.initialize(model=Generating(), config=settings)
    losses = [window(engine, 0)]
    ids = models.batch(0, 0, 0)
    error = ""
    for _ in range(2):
        engine.generate(ids, 2 + 5 * dist.get_rank())
        losses.append(window(engine, len(losses)))
    try:
        engine.generate(ids, tokens="many" if dist.get_rank() else 1)
    except TypeError as raised:
        error = str(raised)
    losses.append(window(engine, len(losses)))
    engine.destroy()
    return {"error": error, "losses": losses}


def cannot_generate() -> str:
    """Return the error of a model without ``generate``."""
    engine, *_ = dsengine.initialize(model=models.tied(), config=config(3))
    try:
        engine.generate()
    except AttributeError as error:
        return str(error)
    finally:
        engine.destroy()
    return ""


def plain_between_steps(settings: dict[str, Any]) -> list[bool]:
    """Return whether parameters are plain after a forward without a backward, and a step."""
    engine, *_ = dsengine.initialize(model=models.tied(), config=settings)

    def is_plain() -> bool:
        return all(not isinstance(each, DTensor) for each in engine.module.parameters())

    found = [is_plain()]
    with torch.no_grad():
        engine(models.batch(0, 0, 0))
    engine.empty_partition_cache()
    found.append(is_plain())
    with torch.no_grad():
        engine(models.batch(0, 0, 0))
    window(engine, 0)
    found.append(is_plain())
    engine.destroy()
    return found


def _llama(seed: int) -> Any:
    import transformers as hf

    torch.manual_seed(seed)
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA))
    for parameter in model.parameters():
        parameter.data.mul_(4)  # so that greedy tokens are not ties of small logits
    return model


def _engine(seed: int, stage: int, accumulation: int, trains: bool = True) -> Any:
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": SAMPLES,
        "gradient_accumulation_steps": accumulation,
        "hybrid_engine": {"enabled": True, "max_out_tokens": 64},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    if trains:
        settings["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-3, "eps": 1e-3}}
    return dsengine.initialize(model=_llama(seed), config=settings)[0]


def _log_probabilities(engine: Any, tokens: Tensor) -> Tensor:
    logits = engine(input_ids=tokens).logits[:, :-1].log_softmax(-1)
    return logits.gather(-1, tokens[:, 1:, None]).squeeze(-1)


def policy_loop(
    stage: int, shares: int, engines: int, gather_once: bool | None = None
) -> list[list[Any]]:
    """Train a policy on what it generates; return tokens by iteration and share of the batch.

    Each of two shares is a rank's, or one micro batch of a single rank (``shares`` 2). Shares have
    other lengths. ``engines`` 2: a policy and a reference, as in GRPO; 4: also a critic and a
    reward model, as in PPO.
    """
    policy = _engine(1, stage, shares)
    reference = _engine(2, stage, shares, trains=False)
    critic, reward = None, None
    if engines == 4:
        critic, reward = _engine(3, stage, shares), _engine(4, stage, shares, trains=False)
    generated: list[list[Any]] = []
    for iteration in range(3):
        own = [dist.get_rank()] if shares == 1 else [0, 1]
        samples: list[Tensor] = []
        for share in own:
            generator = torch.Generator().manual_seed(10 * iteration + share)
            prompt = torch.randint(1, 97, (SAMPLES, PROMPT), generator=generator)
            arguments: dict[str, Any] = {"max_new_tokens": 4 + 6 * share, "do_sample": False}
            samples.append(policy.generate(prompt, gather_once=gather_once, **arguments))
        generated.append([tokens.tolist() for tokens in samples])
        for tokens in samples:
            with torch.no_grad():
                expected = _log_probabilities(reference, tokens)
                score = (tokens % 7).float()[:, 1:]
                if reward is not None:
                    score = score + _log_probabilities(reward, tokens)
            if critic is not None:
                value = _log_probabilities(critic, tokens)
                critic.backward((value - score).square().mean())
                critic.step()
                score = score - value.detach()
            log_probabilities = _log_probabilities(policy, tokens)
            advantage = (score - score.mean()) / score.std()
            distance = (expected - log_probabilities).exp() - (expected - log_probabilities) - 1
            policy.backward((0.01 * distance.clamp(max=10) - advantage * log_probabilities).mean())
            policy.step()
    for engine in (policy, reference, critic, reward):
        if engine is not None:
            engine.destroy()
    return generated


def without_memory(settings: dict[str, Any]) -> dict[str, Any]:
    """Return ``gathers`` if rank 1 has no free memory."""
    from dsengine.sharding import fully_sharded

    share = fully_sharded.SHARE_OF_FREE_MEMORY
    fully_sharded.SHARE_OF_FREE_MEMORY = share * (dist.get_rank() == 0)
    try:
        return gathers(settings, None)
    finally:
        fully_sharded.SHARE_OF_FREE_MEMORY = share
