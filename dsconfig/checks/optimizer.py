"""The optimizer block: what is built from it, and what keeps it from being built."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.keys import is_comment
from dsconfig.checks.registry import rule
from dsconfig.checks.rule import AT_INIT, Finding, reaches_deepspeed
from dsconfig.checks.values import VALUE_KINDS, shown, wrong_argument
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import Effect
from dsconfig.runtimes.base import AUTO
from dsconfig.runtimes.built import Built, engine_takes, optimizer_built
from dsconfig.runtimes.read_config import ZERO
from dsconfig.schema.optimizers import OPTIMIZER_CLASSES, OPTIMIZERS, optimizer_type
from dsconfig.source.edit import as_fix, delete_entry, rename_key, replace_value
from dsconfig.source.pointer import join, split

with lazy_imports():
    from dsconfig.checks import spelling


PARAMS = ("optimizer", "params")


def what_is_built(config: Context) -> Built | None:
    """The class behind the block; None for an unknown or absent type."""
    if config.optimizer is None or config.optimizer == AUTO:
        return None
    offloaded = config.offload("offload_optimizer") != "none" and config.stage > 0
    params = config.block(*PARAMS)
    return optimizer_built(config.optimizer, params, config.version, offloaded=offloaded)


@rule("DSC601", Effect.REFUSED, triggers="optimizer", late=True, on_templates=True)
def unknown_optimizer(config: Context) -> Iterator[Finding]:
    """The type is neither DeepSpeed's own (any letter case) nor a class of torch.optim (exact
    case); the engine is not built.

    bad: {"train_batch_size": 8, "optimizer": {"type": "AdamWW", "params": {"lr": 0.001}}}
    good: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}
    """
    name = config.optimizer
    if name is None or name == AUTO or what_is_built(config):
        return
    known = optimizer_type(name)
    if known is not None and known.until is not None and config.version > known.until:
        message = f"{name} left DeepSpeed after {known.until}: {AT_INIT}"
        meant = "Lamb" if "lamb" in name.lower() else "AdamW"
    elif known is not None:
        message = (
            f"DeepSpeed {config.release} does not have {name} yet, {known.since} does: {AT_INIT}"
        )
        meant = None
    else:
        message = f'"{name}" is no optimizer of DeepSpeed or torch.optim: {AT_INIT}'
        alive = (each for each, one in OPTIMIZERS.items() if one.is_known_at(config.version))
        meant = config.closest(name, alive)
    edits = replace_value(config.document, "/optimizer/type", meant) if meant else ()
    yield Finding(
        path=("optimizer", "type"),
        message=message,
        help=f'did you mean "{meant}"?' if meant else "write AdamW, or a class of torch.optim",
        fix=as_fix(edits, safe=bool(meant) and str(meant).lower() == name.lower()),
    )


@rule("DSC602", Effect.ALTERED, triggers="optimizer")
def optimizer_without_type(config: Context) -> Iterator[Finding]:
    """The optimizer block has no type: it counts as no optimizer at all.

    Without one passed by the script, stages 1 and 2 stop when the engine is built.

    bad: {"train_batch_size": 8, "optimizer": {"name": "AdamW", "params": {"lr": 0.001}}}
    good: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}
    """
    block = config.get("optimizer")
    if not isinstance(block, dict) or config.get("optimizer", "type") is not None:
        return
    edits = rename_key(config.document, "/optimizer/name", "type")
    yield Finding(
        path=("optimizer", "type") if config.has("optimizer", "type") else ("optimizer",),
        message="the optimizer block has no type and counts as none: its params are not read",
        help='add "type": "AdamW"',
        fix=as_fix(edits) if not config.has("optimizer", "type") else None,
        on_key=True,
    )


@rule(
    "DSC603",
    Effect.REFUSED,
    also=(Effect.ALTERED,),
    triggers="optimizer",
    late=True,
    on_templates=True,
)
def unknown_optimizer_argument(config: Context) -> Iterator[Finding]:
    """An argument the constructor does not take; it stops with a TypeError.

    Which class that is depends on the file: `Adam` and `AdamW` are DeepSpeed's fused kernel,
    its CPU kernel under optimizer offload, and torch's classes with `torch_adam`. An argument
    of torch, such as `foreach`, is unknown to the others, and nothing is wrong with it under
    dsengine, which builds torch's classes. Muon drops what it does not know.

    bad: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"learning_rate": 0.001}}}
    good: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}
    """
    target = what_is_built(config)
    if target is None or target.arguments is None:
        return
    known, drops = target.arguments, target.kind.drops_unknown_arguments
    params = config.block(*PARAMS)
    for name in params:
        if name in known or is_comment(name) or name == "max_grad_norm":
            continue
        path = (*PARAMS, name)
        meant = _SYNONYMS.get(name) or config.closest(name, known)
        taken = meant is not None and config.has(*PARAMS, meant)
        edits = () if meant is None or taken else rename_key(config.document, join(*path), meant)
        what = "drops it without a word" if drops else f"does not take it: {AT_INIT}"
        yield Finding(
            path=path,
            message=f'unknown argument "{name}": {target.kind.name} {what}',
            help=f'did you mean "{meant}"?' if meant else "delete it",
            effect=Effect.ALTERED if drops else None,
            late=not drops,
            fix=as_fix(
                edits, safe=not drops and meant is not None and spelling.same_letters(name, meant)
            ),
            applies_to=reaches_deepspeed
            if engine_takes(config.optimizer or "", params, name)
            else None,
            on_key=True,
        )


_SYNONYMS = {"learning_rate": "lr", "epsilon": "eps", "wd": "weight_decay", "beta": "betas"}


@rule("DSC604", Effect.REFUSED, also=(Effect.ALTERED,), triggers="optimizer", late=True)
def optimizer_argument_value(config: Context) -> Iterator[Finding]:
    """An argument of a wrong type or outside its range; the constructor stops.

    A number in quotes ("1e-5", as YAML writes it) is a text.

    bad: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": "1e-3"}}}
    good: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}
    """
    for error in config.schema_errors:
        path = split(error.pointer)
        if error.kind not in VALUE_KINDS or path[:2] != PARAMS or len(path) < 3:
            continue
        if path[2] in ("ns_method", "max_grad_norm"):
            continue
        if path[2] in ("foreach", "fused") and config.get(*path) is None:
            continue  # null is their default
        # The constructor compares numbers, and takes any switch.
        checked = path[2] in _CHECKED and not isinstance(error.value, bool)
        yield wrong_argument(config, error, stops=checked)


_CHECKED = frozenset({"lr", "betas", "eps", "weight_decay", "momentum", "rho", "alpha"})


@rule("DSC605", Effect.REFUSED, triggers="optimizer")
def params_not_a_block(config: Context) -> Iterator[Finding]:
    """optimizer.params is no block of keys; DeepSpeed stops while it reads the file.

    bad: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": [0.001]}}
    good: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}
    """
    value = config.get(*PARAMS)
    if config.optimizer is None or value is None or isinstance(value, dict) or value == AUTO:
        return
    yield Finding(
        path=PARAMS,
        message=f"optimizer.params is {shown(value)}: DeepSpeed stops, it must be a block of keys",
        help='write "params": {"lr": 1e-4}',
    )


@rule("DSC606", Effect.REFUSED, triggers="optimizer zero_allow_untested_optimizer", late=True)
def untested_optimizer(config: Context) -> Iterator[Finding]:
    """ZeRO takes a list of tested optimizers; others need `zero_allow_untested_optimizer`.

    Tested: Adam and AdamW in all forms, Adagrad, Lion, Muon. Lamb and SGD are not. dsengine takes
    every optimizer unless the key says false.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "optimizer": {"type": "SGD",
        "params": {"lr": 0.1}}, "zero_allow_untested_optimizer": false}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "optimizer": {"type": "SGD",
        "params": {"lr": 0.1}}, "zero_allow_untested_optimizer": true}
    """
    key, passed = "zero_allow_untested_optimizer", config.facts.client_optimizer
    if config.stage == 0:
        return
    is_false, help = config.get(key) is False, f'write "{key}": true'
    classes = [each for each in OPTIMIZER_CLASSES.values() if each.is_tested]
    # A class of a tested name counts, whoever's it is.
    if is_false and passed and passed not in {each.name.rpartition(".")[2] for each in classes}:
        yield Finding(
            path=(key,),
            message=f"{passed}, the optimizer of the script, is not on ZeRO's list of tested "
            f"optimizers: {AT_INIT}",
            help=help,
        )
    target = what_is_built(config)
    if target is None or target.kind.is_tested:
        return
    path = ("optimizer", "type")
    if target.kind.refuses_zero:
        yield Finding(
            path=path,
            message=f"{config.optimizer} does not go with ZeRO: {AT_INIT}",
            help="use AdamW, or set zero_optimization.stage to 0",
            applies_to=reaches_deepspeed,
        )
    elif not config.switch(key):
        yield Finding(
            path=path,
            message=f"{config.optimizer} is not on ZeRO's list of tested optimizers: {AT_INIT}",
            help=help,
            applies_to=None if is_false else reaches_deepspeed,
        )


@rule("DSC607", Effect.REFUSED, triggers="optimizer", late=True)
def max_grad_norm_in_params(config: Context) -> Iterator[Finding]:
    """max_grad_norm among the arguments of the optimizer; clipping is `gradient_clipping`.

    A value that is no number stops DeepSpeed already while it reads the file.

    bad: {"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"lr": 0.001,
        "max_grad_norm": 1.0}}}
    good: {"train_batch_size": 8, "gradient_clipping": 1.0, "optimizer": {"type": "Adam", "params":
        {"lr": 0.001}}}
    """
    path = (*PARAMS, "max_grad_norm")
    if not config.has(*path) or config.optimizer is None:
        return
    value = config.get(*path)
    early = not isinstance(value, (int, float))
    edits = delete_entry(config.document, join(*path)) if config.has("gradient_clipping") else ()
    yield Finding(
        path=path,
        message="max_grad_norm is no argument of an optimizer: DeepSpeed stops "
        + ("while it reads the file" if early else "when the engine is built"),
        help=f'write "gradient_clipping": {shown(value)} at the top level',
        late=not early,
        fix=as_fix(edits, safe=False),
        on_key=True,
    )


@rule("DSC612", Effect.NOTE, triggers="optimizer", applies_to=reaches_deepspeed)
def package_needed(config: Context) -> Iterator[Finding]:
    """The optimizer comes from a package of its own; without it DeepSpeed stops with an
    UnboundLocalError.

    bad: {"train_batch_size": 8, "optimizer": {"type": "MuAdam", "params": {"lr": 0.001}}}
    good: {"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"lr": 0.001}}}
    """
    target = what_is_built(config)
    package = target.kind.package if target is not None else None
    if target is not None and package:
        yield Finding(
            path=("optimizer", "type"),
            message=f"{target.kind.name} needs the package {package}: without it DeepSpeed stops "
            "with an UnboundLocalError",
            help=f"pip install {package}",
        )


@rule(
    "DSC613",
    Effect.NOTE,
    triggers="zero_optimization",
    applies_to=lambda runtime: not runtime.supplies_optimizer,
)
def no_optimizer(config: Context) -> Iterator[Finding]:
    """The file has no optimizer, so the script must pass one.

    Otherwise stages 1 and 2 stop when the engine is built, and stage 3 at the first backward.
    Told where one program is asked about (on the command line: named). The Trainer always has one,
    and who writes a script for accelerate hands one to `prepare`.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "optimizer": {"type": "AdamW",
        "params": {"lr": 0.001}}}
    """
    alone = not config.has("optimizer") and config.facts.client_optimizer is None
    if config.stage and alone and len(config.runtimes) == 1:
        own = config.offload("offload_optimizer") != "none"
        offloaded = (
            "; a torch optimizer is refused where it is offloaded: pass DeepSpeedCPUAdam, or set "
            '"zero_force_ds_cpu_optimizer": false'
        )
        yield Finding(
            path=ZERO,
            message=f"ZeRO stage {config.stage} needs an optimizer: the script has to pass one, "
            "since the file has none",
            help='add "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}} if it does not'
            + (offloaded if own else ""),
            on_key=True,
        )
