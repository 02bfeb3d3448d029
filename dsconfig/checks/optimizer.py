"""Rules for the optimizer block."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.keys import is_comment
from dsconfig.checks.registry import rule
from dsconfig.checks.rule import AT_INIT, Finding, Phase, reaches_deepspeed
from dsconfig.checks.values import VALUE_KINDS, shown, wrong_argument
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import Effect
from dsconfig.runtimes.base import AUTO
from dsconfig.runtimes.built import Built, engine_takes, optimizer_built
from dsconfig.schema import SchemaError
from dsconfig.schema.optimizers import OPTIMIZER_CLASSES, OPTIMIZERS, optimizer_type
from dsconfig.schema.paths import OPTIMIZER, OPTIMIZER_PARAMS, OPTIMIZER_TYPE, ROOT, ZERO
from dsconfig.source.edit import as_fix, delete_entry, rename_key, replace_value
from dsconfig.source.pointer import split

with lazy_imports():
    from dsconfig.schema import spelling


def built_optimizer(config: Context) -> Built | None:
    """Return the class that the block creates; None for an unknown or absent type, or if the script
    passes an optimizer, which takes precedence."""
    if config.optimizer is None or config.optimizer == AUTO or config.facts.client_optimizer:
        return None
    offloaded = config.offload("offload_optimizer") != "none" and config.stage > 0
    params = config.block(*OPTIMIZER_PARAMS)
    return optimizer_built(config.optimizer, params, config.version, offloaded=offloaded)


@rule(
    "DSC601", Effect.REFUSED, triggers="optimizer", on_templates=True, stops="engine AssertionError"
)
def unknown_optimizer(config: Context) -> Iterator[Finding]:
    """Unknown optimizer type

    It must be an optimizer of DeepSpeed (in any letter case) or a class of torch.optim (exact
    case).

    bad: {"train_batch_size": 8, "optimizer": {"type": "AdamWW", "params": {"lr": 0.001}}}
    good: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}
    """
    name = config.optimizer
    if name is None or name == AUTO or built_optimizer(config) or config.facts.client_optimizer:
        return
    known = optimizer_type(name)
    if known is not None and known.until is not None and config.version > known.until:
        message = f"{name} was removed from DeepSpeed after {known.until}: {AT_INIT}"
        meant = "Lamb" if "lamb" in name.lower() else "AdamW"
    elif known is not None:
        message = (
            f"DeepSpeed {config.release} does not have {name} yet, {known.since} does: {AT_INIT}"
        )
        meant = None
    else:
        message = f'"{name}" is not an optimizer of DeepSpeed or torch.optim: {AT_INIT}'
        current = (each for each, kind in OPTIMIZERS.items() if kind.is_known_at(config.version))
        meant = config.closest(name, current)
    edits = replace_value(config.document, "/optimizer/type", meant) if meant else ()
    yield Finding(
        path=OPTIMIZER_TYPE,
        message=message,
        help=f'did you mean "{meant}"?' if meant else "write AdamW, or a class of torch.optim",
        fix=as_fix(edits, safe=bool(meant) and str(meant).lower() == name.lower()),
    )


@rule("DSC602", Effect.ALTERED, triggers="optimizer")
def optimizer_without_type(config: Context) -> Iterator[Finding]:
    """Optimizer block without `type`

    DeepSpeed ignores the block. Unless the script passes an optimizer, engine initialization fails
    at stages 1 and 2.

    bad: {"train_batch_size": 8, "optimizer": {"name": "AdamW", "params": {"lr": 0.001}}}
    good: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}
    """
    block = config.get("optimizer")
    if not isinstance(block, dict) or config.get("optimizer", "type") is not None:
        return
    edits = rename_key(config.document, "/optimizer/name", "type")
    yield Finding(
        path=OPTIMIZER_TYPE if config.has("optimizer", "type") else OPTIMIZER,
        message="the optimizer block has no type: DeepSpeed ignores it and its params",
        help='add "type": "AdamW"',
        fix=as_fix(edits) if not config.has("optimizer", "type") else None,
        on_key=True,
    )


@rule(
    "DSC603",
    Effect.REFUSED,
    also=(Effect.ALTERED,),
    triggers="optimizer",
    on_templates=True,
    stops="optimizer TypeError",
)
def unknown_optimizer_argument(config: Context) -> Iterator[Finding]:
    """Unknown optimizer argument

    The constructor raises a TypeError. The class depends on the config: `Adam` and `AdamW` are
    DeepSpeed's fused kernel, DeepSpeedCPUAdam with optimizer offload, and torch's classes with
    `torch_adam`. Only torch's classes accept arguments such as `foreach`; dsengine uses torch's
    classes. Muon ignores unknown arguments.

    bad: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"learning_rate": 0.001}}}
    good: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}
    """
    target = built_optimizer(config)
    if target is None or target.arguments is None:
        return
    known, drops = target.arguments, target.kind.ignores_unknown_arguments
    params = config.block(*OPTIMIZER_PARAMS)
    for name in params:
        if name in known or is_comment(name) or name == "max_grad_norm":
            continue
        path = OPTIMIZER_PARAMS / name
        meant = _SYNONYMS.get(name) or config.closest(name, known)
        taken = meant is not None and config.has(*OPTIMIZER_PARAMS, meant)
        edits = () if meant is None or taken else rename_key(config.document, path.pointer, meant)
        problem = "silently ignores it" if drops else f"does not accept it: {AT_INIT}"
        yield Finding(
            path=path,
            message=f'unknown argument "{name}": {target.kind.name} {problem}',
            help=f'did you mean "{meant}"?' if meant else "delete it",
            effect=Effect.ALTERED if drops else None,
            fix=as_fix(
                edits, safe=not drops and meant is not None and spelling.same_letters(name, meant)
            ),
            applies_to=reaches_deepspeed
            if engine_takes(config.optimizer or "", params, name)
            else None,
            on_key=True,
        )


_SYNONYMS = {"learning_rate": "lr", "epsilon": "eps", "wd": "weight_decay", "beta": "betas"}


@rule(
    "DSC604",
    Effect.REFUSED,
    also=(Effect.ALTERED,),
    triggers="optimizer",
    stops="step TypeError",
)
def optimizer_argument_value(config: Context) -> Iterator[Finding]:
    """Invalid value of an optimizer argument

    The constructor raises an error. A number in quotes ("1e-5") is a string.

    bad: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": "1e-3"}}}
    good: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}
    """
    for error in config.schema_errors:
        path = split(error.pointer)
        if error.kind not in VALUE_KINDS or path[:2] != OPTIMIZER_PARAMS or len(path) < 3:
            continue
        if path[2] in ("ns_method", "max_grad_norm"):
            continue
        if path[2] in ("foreach", "fused") and config.get(*path) is None:
            continue  # null is their default
        # The constructor compares numbers, and accepts any boolean.
        checked = path[2] in _CHECKED and not isinstance(error.value, bool)
        yield _wrong_argument(config, error) if checked else wrong_argument(config, error, None)


def _wrong_argument(config: Context, error: SchemaError) -> Finding:
    """Return the finding for a value that the constructor or, in a fused kernel, the step uses."""
    target, value = built_optimizer(config), error.value
    is_fused = target is not None and target.kind.name.startswith("Fused")
    phase, exception = Phase.STEP if is_fused else Phase.OPTIMIZER, "TypeError"
    if isinstance(value, list) and len(config.items(*split(error.pointer))) < 2:
        exception = "ValueError" if is_fused else "IndexError"
    return wrong_argument(config, error, phase, exception)


_CHECKED = frozenset({"lr", "betas", "eps", "weight_decay", "momentum", "rho", "alpha"})


@rule("DSC605", Effect.REFUSED, triggers="optimizer", stops="end AttributeError")
def params_not_a_block(config: Context) -> Iterator[Finding]:
    """`optimizer.params` is not an object

    bad: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": [0.001]}}
    good: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}
    """
    value = config.get(*OPTIMIZER_PARAMS)
    if config.optimizer is None or value is None or isinstance(value, dict) or value == AUTO:
        return
    yield Finding(
        path=OPTIMIZER_PARAMS,
        message=f"optimizer.params is {shown(value)}, but must be an object: DeepSpeed rejects "
        "the config",
        help='write "params": {"lr": 1e-4}',
    )


@rule(
    "DSC606",
    Effect.REFUSED,
    triggers="optimizer zero_allow_untested_optimizer",
    stops="zero AssertionError",
)
def untested_optimizer(config: Context) -> Iterator[Finding]:
    """Optimizer is not tested with ZeRO

    Other optimizers than Adam and AdamW (in all forms), Adagrad, Lion and, since 0.18.5, Muon
    require `zero_allow_untested_optimizer`. dsengine accepts every optimizer unless that key is
    false.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "optimizer": {"type": "SGD",
        "params": {"lr": 0.1}}, "zero_allow_untested_optimizer": false}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "optimizer": {"type": "SGD",
        "params": {"lr": 0.1}}, "zero_allow_untested_optimizer": true}
    """
    key, passed = "zero_allow_untested_optimizer", config.facts.client_optimizer
    if config.stage == 0:
        return
    is_false, help = config.get(key) is False, f'write "{key}": true'
    tested = {kind.name.rpartition(".")[2] for kind in OPTIMIZER_CLASSES.values() if kind.is_tested}
    if is_false and passed and passed not in tested:  # DeepSpeed compares class names
        yield Finding(
            path=ROOT / key,
            message=f"the script's {passed} is not tested with ZeRO: {AT_INIT}",
            help=help,
        )
    target = built_optimizer(config)
    # Until 0.18.4, DeepSpeed imports its Muon under a wrong name and does not recognize it.
    unrecognized = config.is_optimizer("Muon") and not config.since("0.18.5")
    if target is None or (target.kind.is_tested and not unrecognized):
        return
    path = OPTIMIZER_TYPE
    if target.kind.refuses_zero:
        yield Finding(
            path=path,
            message=f"{config.optimizer} does not support ZeRO: {AT_INIT}",
            help="use AdamW, or set zero_optimization.stage to 0",
            applies_to=reaches_deepspeed,
        )
    elif not config.switch(key):
        yield Finding(
            path=path,
            message=f"{config.optimizer} is not tested with ZeRO: {AT_INIT}",
            help=help,
            applies_to=None if is_false else reaches_deepspeed,
        )


@rule("DSC607", Effect.REFUSED, triggers="optimizer", stops="optimizer ValueError")
def max_grad_norm_in_params(config: Context) -> Iterator[Finding]:
    """`max_grad_norm` in the optimizer arguments

    Use `gradient_clipping`. If the value is not a number, DeepSpeed rejects the config.

    bad: {"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"lr": 0.001,
        "max_grad_norm": 1.0}}}
    good: {"train_batch_size": 8, "gradient_clipping": 1.0, "optimizer": {"type": "Adam", "params":
        {"lr": 0.001}}}
    """
    path = OPTIMIZER_PARAMS / "max_grad_norm"
    if not config.has(*path) or config.optimizer is None:
        return
    value = config.get(*path)
    early = not isinstance(value, (int, float))
    is_repeated = config.get("gradient_clipping") == value
    edits = delete_entry(config.document, path.pointer) if is_repeated else ()
    yield Finding(
        path=path,
        message="max_grad_norm is not an optimizer argument: "
        + ("DeepSpeed rejects the config" if early else AT_INIT),
        help=f'write "gradient_clipping": {shown(value)} at the top level',
        phase=Phase.PARSE if early else None,
        exception="TypeError" if early else None,
        fix=as_fix(edits, safe=False),
        on_key=True,
    )


@rule("DSC612", Effect.NOTE, triggers="optimizer", applies_to=reaches_deepspeed)
def optimizer_package_required(config: Context) -> Iterator[Finding]:
    """Optimizer requires a package

    Without it, DeepSpeed raises an UnboundLocalError.

    bad: {"train_batch_size": 8, "optimizer": {"type": "MuAdam", "params": {"lr": 0.001}}}
    good: {"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"lr": 0.001}}}
    """
    target = built_optimizer(config)
    package = target.kind.package if target is not None else None
    if target is not None and package:
        yield Finding(
            path=OPTIMIZER_TYPE,
            message=f"{target.kind.name} requires the package {package}: without it, DeepSpeed "
            "raises an UnboundLocalError",
            help=f"pip install {package}",
        )


@rule(
    "DSC613",
    Effect.NOTE,
    triggers="zero_optimization",
    applies_to=lambda runtime: not runtime.supplies_optimizer,
)
def no_optimizer(config: Context) -> Iterator[Finding]:
    """Config without an optimizer

    The script must pass an optimizer. Otherwise engine initialization fails at stages 1 and 2, and
    the first backward at stage 3. Reported only if the target program is specified. The Trainer
    creates an optimizer, and accelerate scripts pass one to `prepare`.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "optimizer": {"type": "AdamW",
        "params": {"lr": 0.001}}}
    """
    alone = not config.has("optimizer") and config.facts.client_optimizer is None
    if config.stage and alone and len(config.runtimes) == 1:
        is_offloaded = config.offload("offload_optimizer") != "none"
        offloaded = (
            "; offload rejects torch optimizers: pass DeepSpeedCPUAdam, or set "
            '"zero_force_ds_cpu_optimizer": false'
        )
        yield Finding(
            path=ZERO,
            message=f"ZeRO stage {config.stage} requires an optimizer, and the config has none: "
            "the "
            "script must pass one",
            help='add "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}} if it does not'
            + (offloaded if is_offloaded else ""),
            on_key=True,
        )
