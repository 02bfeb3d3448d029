"""Bytes autograd keeps per decoder layer: Llama-type rows within 0.5 %, all within 10 %.

Two sequence lengths give the linear and the quadratic term of the closed form.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import dsconfig
from dsconfig.facts import catalogue, named_model
from replays import Case

LLAMA_TYPE = ("llama", "mistral", "qwen2", "qwen3")
SHORT, LONG = 1024, 4096
CONFIG = {"bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 1}


def replay(path: Path) -> Iterator[Case]:
    for label, expected in json.loads(path.read_text())["per_model"].items():
        name, _, kind = label.partition("|")
        model = _model(name)
        tolerance = 0.005 if _family(model).startswith(LLAMA_TYPE) else 0.1
        if kind == "checkpointed":
            got = _per_token(model, SHORT, "sdpa", recompute=True)
            yield _case(label, expected, got, tolerance)
            continue
        linear, quadratic = _terms(model, kind)
        yield _case(f"{label} linear", expected["linear_bytes_per_sbh"], linear, tolerance)
        yield _case(f"{label} as/h", expected["quad_coeff_a_s_over_h"], quadratic, tolerance)


def _case(name: str, expected: float, got: float, tolerance: float) -> Case:
    agrees = abs(got - expected) <= max(tolerance * abs(expected), 1e-3)
    return Case(name, expected, round(got, 3), agrees)


def _model(name: str) -> dsconfig.ModelTree:
    plain = name.removesuffix(" dropout 0")
    family = plain.split(" / ")[0]
    named = (each["name"] for each in catalogue.models() if each["name"].startswith(family))
    model = named_model.model(next(named, family))
    if plain == name or model.architecture is None:
        return model
    extras = MappingProxyType({**model.architecture.extras, "dropout": 0})
    return replace(model, architecture=replace(model.architecture, extras=extras))


def _family(model: dsconfig.ModelTree) -> str:
    return (model.architecture.family if model.architecture else None) or ""


def _terms(model: dsconfig.ModelTree, attention: str) -> tuple[float, float]:
    """Solve bytes / (s b h) = linear + quadratic * a * s / h for two lengths."""
    shape = model.architecture
    assert shape is not None
    short, long = (_per_token(model, length, attention) for length in (SHORT, LONG))
    ratio = shape.heads / shape.hidden_size
    quadratic = (long - short) / ((LONG - SHORT) * ratio)
    return short - quadratic * SHORT * ratio, quadratic


def _per_token(
    model: dsconfig.ModelTree, length: int, attention: str, recompute: bool = False
) -> float:
    """Return bytes per layer divided by s*b*h."""
    shape = model.architecture
    assert shape is not None
    arguments = {"attn_implementation": attention, "gradient_checkpointing": recompute}
    facts = dsconfig.Facts(
        world_size=1,
        nodes=1,
        device=dsconfig.DeviceFacts(name="cpu", kind="cpu"),
        model=model,
        training=dsconfig.TrainingFacts(sequence_length=length, arguments=arguments),
    )
    resolution = dsconfig.resolve(CONFIG, facts, runtime="deepspeed")
    device = dsconfig.estimate(resolution, facts).options[0].device
    kept = next(part.bytes for part in device.components if part.name == "activations")
    return kept / shape.layers / (length * shape.hidden_size)
