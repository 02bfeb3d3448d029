"""Fixes of arbitrary stray keys add no finding, and no program fails after them."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

import dsconfig
from dsconfig.applicable_fixes import ABOUT_THE_SCRIPT
from dsconfig.checks.registry import rules
from dsconfig.project.fixing import fix
from dsconfig.project.inference import EVERY
from dsconfig.project.validator import Validator
from dsconfig.reference.examples import facts_of
from dsconfig.report import Diagnostic, Effect
from dsconfig.runtimes.base import NAMES
from dsconfig.schema.catalogue import keys
from dsconfig.source import Document
from dsconfig.source.edit import apply_fixes
from dsconfig.source.from_text import document_from_text
from mutants import CORPUS
from property_settings import without_health_checks

BASES: list[dict[str, Any]] = [
    {"train_batch_size": 8},
    {
        "train_batch_size": 8,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
        "data_efficiency": {"enabled": False},
    },
    {
        "train_micro_batch_size_per_gpu": "auto",
        "fp16": {"enabled": "auto"},
        "zero_optimization": {"stage": 2, "overlap_comm": True},
        "optimizer": {"type": "Adam", "params": {"lr": "auto", "betas": "auto"}},
        "flops_profiler": {"enabled": True},
        "activation_checkpointing": {"partition_activations": True},
    },
]
KNOWN = sorted({key.name for key in keys()} | {key.path.split(".")[0] for key in keys()})
WORDS = [
    "checkpoint_dir", "flops_profiler_enabled", "max_grad_norm", "offload_optimizer_device",
    "seed", "epochs", "buffer_size", "micro_batch_size", "lr_scheduler", "scheduler_type",
    "optimizer_type", "zero_stage", "warmup_ratio", "learning_rate", "gradient_cliping",
    "overlap_com", "Stage", "monitor", "tensorboard_dir", "wandb_project",
    "gradient_accumulation_dtype", "cpu_offload", "stage3_prefetch", "bfloat16", "fp16_enabled",
]  # fmt: skip
VALUES = some.sampled_from([
    0, 1, 8, -1, 2.5, 1e-4, 5e8, True, False, None, "auto", "cpu", "ck", "bf16", "linear", "8",
    {}, [], [0.9, 0.999], {"enabled": True}, {"stage": 2}, {"device": "cpu"}, {"type": "Adam"},
])  # fmt: skip


def misspelled(name: str, at: int, how: int) -> str:
    """Return a name with a typo: a missing letter, another case, a dash, an extra word."""
    at %= max(1, len(name))
    forms = (name[:at] + name[at + 1 :], name.title(), name.replace("_", "-"), f"{name}_size",
             name.rpartition("_")[0] or name, f"{name}_enabled", name)  # fmt: skip
    return forms[how % len(forms)] or name


NAME = some.one_of(
    some.sampled_from(WORDS),
    some.builds(misspelled, some.sampled_from(KNOWN), some.integers(0, 30), some.integers(0, 6)),
)
STRAY = some.tuples(some.integers(0, 5), NAME, VALUES)


def with_strays(base: dict[str, Any], strays: list[tuple[int, str, Any]]) -> str:
    """Return a config with each stray key in the root or in one of its blocks."""
    config = deepcopy(base)
    for index, name, value in strays:
        blocks = [config, *(block for block in config.values() if isinstance(block, dict))]
        blocks[index % len(blocks)].setdefault(name, deepcopy(value))
    return json.dumps(config, indent=2)


def findings(document: Document, runtime: str | None) -> Counter[tuple[str, ...]]:
    return counted(dsconfig.validate(document, runtime=runtime).diagnostics)


def is_rejected(document: Document) -> bool:
    """Return whether the replay of DeepSpeed rejects the config."""
    facts = dsconfig.Facts(world_size=1)
    return not dsconfig.resolve(document, facts, runtime="deepspeed").ok


@without_health_checks(150)
@given(
    some.sampled_from(BASES),
    some.lists(STRAY, min_size=1, max_size=3),
    some.sampled_from([None, *NAMES]),
)
def test_fix_adds_no_finding(
    base: dict[str, Any], strays: list[tuple[int, str, Any]], runtime: str | None
) -> None:
    before = document_from_text(with_strays(base, strays), "ds.json")
    after = fix(before, Validator(runtime=runtime).with_program(before), unsafe=True).document
    target = Validator(runtime=runtime).with_program(before).program
    program = target.runtime.name if target is not None else None
    assert not findings(after, program) - findings(before, program)
    left = dsconfig.validate(after, runtime=program).diagnostics
    assert not [each.code for each in left if each.fix is not None]
    if program == "deepspeed":
        assert is_rejected(after) <= is_rejected(before)


def public_files() -> Iterator[tuple[Document, Validator]]:
    for path in sorted(CORPUS.glob("*.json")):
        document = dsconfig.read(path)
        yield document, Validator().with_program(document, str(path))


def examples() -> Iterator[tuple[Document, Validator]]:
    for rule in rules().values():
        for example in (rule.bad, rule.good):
            document = dsconfig.read(example.config, name=example.name)
            validator = Validator(
                facts=facts_of(example),
                runtime=example.runtime or EVERY,
                version=example.version,
            )
            yield document, validator.with_program(document)


def leaves(value: Any) -> Iterator[Any]:
    """Yield the scalars of a config, numbers and texts alike."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from leaves(each)
    else:
        yield value


NOTHING_LOST = {"DSC026", "DSC027", "DSC029", "DSC607"}
"""Values that another key has, comments, and keys that no release reads."""
LOSES_NOTHING = (None, False)


@pytest.mark.parametrize("files", [public_files, examples])
def test_announced_fix_is_applied_alone_and_with_others(
    files: Callable[[], Iterator[tuple[Document, Validator]]],
) -> None:
    tried = 0
    for before, validator in files():
        report = validator.validate(before)
        for finding in report.diagnostics:
            if finding.fix is None:
                continue
            tried += 1
            text, _ = apply_fixes(before.text or "", [finding.fix])
            after = document_from_text(text, before.name, has_bom=before.has_bom)
            found = validator.validate(after).diagnostics
            case = (before.name, finding.code, finding.pointer)
            assert (finding.code, finding.pointer) not in {
                (each.code, each.pointer) for each in found
            }, case
            if not before.is_broken:
                assert not counted(found) - counted(report.diagnostics), case
            values, kept = list(leaves(before.value)), list(leaves(after.value))
            if finding.code not in NOTHING_LOST and len(kept) < len(values):
                lost = Counter(map(repr, values)) - Counter(map(repr, kept))
                assert set(lost) <= set(map(repr, LOSES_NOTHING)), case
            for name in NAMES:
                assert bool(accepts(before, name)) <= bool(accepts(after, name)), (case, name)
        once = fix(before, validator, unsafe=True)
        left = [each.code for each in once.report.diagnostics if each.fix is not None]
        assert not left, (before.name, left)
    assert tried > 10


def counted(found: Iterable[Diagnostic]) -> Counter[tuple[str, ...]]:
    """Count findings by code, program and each effect that is at most as severe, without notes
    about the script."""
    effects = list(Effect)
    return Counter(
        (each.code, effect, name)
        for each in found
        for name in each.runtimes
        for effect in effects[effects.index(each.effect) :]
        if each.code not in ABOUT_THE_SCRIPT
    )


def accepts(document: Document, program: str) -> bool:
    return not dsconfig.validate(document, runtime=program).refusals


@pytest.mark.parametrize(
    "config",
    [
        '{"train_batch_size": 8, "zero_optimization": {"stage": 2, '
        '"stage3_param_persistance_threshold": 1e5}}',
        '{"train_batch_size": 8, "gradient_clipping": 0.5, "optimizer": {"type": "Adam", '
        '"params": {"lr": 1e-3, "max_grad_norm": 1.0}}}',
        '{"train_batch_size": 8, "zero_optimization": {"stage": 3, "cpu_offload": false, '
        '"offload_optimizer": {"device": "cpu"}}}',
    ],
    ids=["another finding", "another value", "another device"],
)
def test_fix_that_would_not_be_applied_is_not_announced(config: str) -> None:
    found = dsconfig.validate(config, runtime="deepspeed").diagnostics
    assert not [each for each in found if each.fix is not None]


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
@without_health_checks(300)
@given(some.sampled_from(BASES[:2]), some.lists(STRAY, min_size=1, max_size=3))
def test_deepspeed_accepts_fixed_config(
    base: dict[str, Any], strays: list[tuple[int, str, Any]]
) -> None:
    before = document_from_text(with_strays(base, strays), "ds.json")
    after = fix(before, Validator(runtime="deepspeed").with_program(before), unsafe=True).document
    assert refused(after) <= refused(before)


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("unsafe", [False, True], ids=["safe", "unsafe"])
def test_deepspeed_accepts_fixed_public_files(unsafe: bool) -> None:
    for path in sorted(CORPUS.glob("*.json")):
        before = dsconfig.read(path)
        validator = Validator().with_program(before, str(path))
        after = fix(before, validator, unsafe=unsafe).document
        assert refused(after) <= refused(before), path.name


def refused(document: Document) -> bool:
    """Return whether the installed DeepSpeed rejects the config with one rank."""
    from tempfile import TemporaryDirectory

    from deepspeed.runtime.config import DeepSpeedConfig

    with TemporaryDirectory() as folder:
        path = f"{folder}/ds.json"
        with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(document.text or "")
        try:
            DeepSpeedConfig(path)
        except Exception:  # any exception is a rejection
            return True
    return False
