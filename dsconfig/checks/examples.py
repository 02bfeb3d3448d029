"""Check the examples of a rule with the options on its page."""

from dataclasses import replace
from pathlib import Path

from dsconfig.checks.rule import Example
from dsconfig.checks.runner import check
from dsconfig.facts import Facts, hf_config
from dsconfig.facts.gathering import facts_of as gathered
from dsconfig.facts.model import ModelOutline, ModelTree
from dsconfig.facts.request import FactsRequest
from dsconfig.report import Diagnostic
from dsconfig.schema.version import Version
from dsconfig.source import read
from dsconfig.source.ignores import without_ignored
from dsconfig.source.reading import BY_SUFFIX


def facts_of(example: Example) -> Facts:
    """Return the facts of an example."""
    model, written = example.model, example.model_config
    described = hf_config.model_or_outline(written, "config.json") if written else None
    request = FactsRequest(
        gpus=example.world_size,
        device=example.device,
        seq_len=example.seq_len,
        model=described if isinstance(described, ModelTree) else model,
        lora_rank=example.lora_rank,
        base_weights=example.base_weights,
        host_memory=example.host_memory,
        client_optimizer=example.client_optimizer,
        training_args=example.training_args,
        releases=example.releases,
    )
    facts = gathered(request)
    return replace(facts, outline=described) if isinstance(described, ModelOutline) else facts


def check_example(example: Example) -> tuple[Diagnostic, ...]:
    """Return all findings for an example."""
    version = Version.parse(example.version) if example.version else None
    form = BY_SUFFIX.get(Path(example.name).suffix)
    document = read(example.config, name=example.name, format=form)
    diagnostics = check(document, facts_of(example), runtime=example.runtime, version=version)
    return without_ignored(document, diagnostics, report_unused=example.runtime is None)


def flags_of(example: Example) -> str:
    """Return the options of ``dsconfig validate`` that set the facts of an example."""
    flags = {
        "--runtime": example.runtime or "all",
        "--deepspeed-version": example.version,
        "--world-size": example.world_size,
        "--device": example.device,
        "--seq-len": example.seq_len,
        "--model": "config.json" if example.model_config else example.model,
        "--lora-rank": example.lora_rank,
        "--base-weights": example.base_weights,
        "--host-memory": example.host_memory,
        "--client-optimizer": example.client_optimizer,
        "--training-args": "args.json" if example.training_args else None,
    }
    listed = [f"{flag} {value}" for flag, value in flags.items() if value is not None]
    listed += [f"--with {name}=={release}" for name, release in (example.releases or {}).items()]
    return " ".join(listed)
