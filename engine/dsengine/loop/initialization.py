"""``initialize``: read, validate, resolve and plan a config, then build the engine."""

import gc
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from dsconfig import Plan, TrainingFacts, launch_env
from dsengine.communication.agreement import check_agreement
from dsengine.communication.devices import device_of_rank, select_device
from dsengine.communication.environment import DEFAULT_PORT
from dsengine.communication.exit_watch import watch_exit
from dsengine.communication.gloo_exit import wait_for_gloo_at_exit
from dsengine.communication.peers import in_phase, registered
from dsengine.loop.data import RepeatingLoader
from dsengine.loop.engine import Engine, active_engines
from dsengine.loop.loaded_weights import refuse_unloaded_weights
from dsengine.loop.misuse import ArgumentError, check_result, check_types, listed_parameters
from dsengine.loop.planning import (
    Config,
    facts_of,
    plan_for,
    plan_from,
    refuse_insufficient_memory,
    refuse_parallel,
    refuse_split_layers,
    refuse_uncovered,
    refuse_unusable_files,
    shared_samples,
)
from dsengine.loop.process_settings import ProcessSettings
from dsengine.observation.printing import log_replacement, script_logger
from dsengine.optimizers import (
    as_groups,
    build_optimizer,
    is_muon,
    masters_of_groups,
    rebind,
    split_for_muon,
)
from dsengine.optimizers.precision import loss_scaler, policy
from dsengine.optimizers.schedules import build_schedule
from dsengine.parallel.pipeline.module import PipelineModule
from dsengine.parallel.pipeline.stages import collect_stages
from dsengine.parameters.model_tree import describe
from dsengine.release import VERSION
from dsengine.sharding import Sharding, distribute, gradients_of
from dsengine.startup import is_replaced
from dsengine.tiers import bind
from dsengine.topology import Topology, make_current, rank
from dsengine.torch_private.optimizers import load_compiler


@in_phase("initialize")
def initialize(
    args: Any = None,
    model: nn.Module | None = None,
    optimizer: Optimizer | Callable[[Any], Optimizer] | None = None,
    model_parameters: Any = None,
    training_data: Any = None,
    lr_scheduler: Any = None,
    distributed_port: int = DEFAULT_PORT,
    mpu: Any = None,
    dist_init_required: bool | None = None,
    collate_fn: Callable[..., Any] | None = None,
    config: Config | None = None,
    mesh_param: Any = None,
    config_params: Config | None = None,
    *,
    plan: Plan | str | Path | None = None,
    training: TrainingFacts | None = None,
) -> tuple[Engine, Optimizer | None, Any, Any]:
    """Return (engine, optimizer, dataloader, scheduler); what was not requested is None.

    Takes the arguments of ``deepspeed.initialize``. ``plan``, or the path of one, replaces the
    config and skips reading and resolving. With neither, the plan of ``dsconfig run`` is used.
    ``training``: facts that the config does not contain (sequence length, total steps ...), used to
    resolve "auto" and to estimate memory. A model under another engine is taken over with its
    trained weights.
    Raises ValueError with every finding if the config is refused; for a submodule of an engine's
    model; with ``dist_init_required=False`` if no process group exists; and if ``mpu``,
    ``mesh_param``, the model or the plan indicate that ranks split layers, or samples in a way of
    their own.
    """
    if model is None:
        raise ArgumentError("initialize() requires a model: pass model=...")
    named = _named_config(args)
    check_types(
        model=model,
        optimizer=optimizer,
        training_data=training_data,
        lr_scheduler=lr_scheduler,
        distributed_port=distributed_port,
        mpu=mpu,
        dist_init_required=dist_init_required,
        collate_fn=collate_fn,
        config=config,
        mesh_param=mesh_param,
        config_params=config_params,
        plan=plan,
        training=training,
        **{"args.deepspeed_config": named},
    )
    parameters = None if model_parameters is None else listed_parameters(model_parameters)
    if not dist.is_initialized():
        from dsengine.communication.start import init_distributed

        init_distributed(distributed_port=distributed_port, dist_init_required=dist_init_required)
    if is_replaced():
        log_replacement(VERSION)
    load_compiler()
    wait_for_gloo_at_exit()
    watch_exit()
    select_device()
    if isinstance(model, PipelineModule) and mpu is not None:
        raise ArgumentError(
            "initialize(mpu=...): a PipelineModule decides the groups of ranks: pass no mpu, and "
            "topology=... to the PipelineModule"
        )
    refuse_split_layers(model, mpu)
    if isinstance(model, PipelineModule):
        collect_stages(model)
    configs = (config, config_params, named)
    with registered():
        chosen = _agreed_plan(
            model,
            lambda: _planned(
                plan,
                [given for given in configs if given is not None],
                model=model,
                optimizer=optimizer,
                lr_scheduler=lr_scheduler,
                training=training,
                sequence=shared_samples(mpu, mesh_param),
            ),
            lambda made: _refuse_untrained_stage(made, model, optimizer, parameters),
        )
        engine = _build(chosen, model, optimizer, parameters, lr_scheduler, collate_fn)
        if training_data is not None:
            # The stages of a pipeline read the same samples, in order as in DeepSpeed.
            route = "eval" if isinstance(model, PipelineModule) else "train"
            engine.training_dataloader = engine.deepspeed_io(training_data, route=route)
            if isinstance(model, PipelineModule):
                engine.set_dataloader(RepeatingLoader(engine.training_dataloader))
    if rank() == 0:
        script_logger.info("DeepSpeed info: version=%s", VERSION)
    return engine, engine.optimizer, engine.training_dataloader, engine.lr_scheduler


def _build(
    plan: Plan,
    model: nn.Module,
    optimizer: Any,
    parameters: list[Any] | None,
    lr_scheduler: Any,
    collate_fn: Any,
) -> Engine:
    if parameters is None:
        parameters = list(_trainable(model))
    if callable(optimizer) and not isinstance(optimizer, Optimizer):
        optimizer = check_result("optimizer", optimizer(parameters), "param_groups")
    device = device_of_rank()
    process = ProcessSettings(plan.effective)
    precision = policy(plan.effective)
    _refuse_shared(model, replaces=plan.effective.zero.stage > 0 or precision.is_mixed)
    _checkpoint_activations(plan, model)
    topology = Topology(plan.mesh, device.type)
    make_current(topology, of_engine=True)
    sharding, originals = distribute(model, plan, precision, topology, device)
    groups = as_groups(parameters, keeps_empty=isinstance(model, PipelineModule))
    bound = _bound_optimizer(plan, sharding, originals, optimizer, groups)
    del originals  # they would keep full parameters alive next to the shards
    schedule = _scheduler(plan, bound, lr_scheduler)
    binding = bind(bound, sharding.masters, plan.effective, sharding.host_masters)
    try:
        offloaded = binding.offloaded_gradients
        gradients = gradients_of(sharding, plan, precision, topology, offloaded)
    except BaseException:
        binding.close()
        raise
    return Engine(
        plan=plan,
        topology=topology,
        sharding=sharding,
        gradients=gradients,
        policy=precision,
        scaler=loss_scaler(plan.effective),
        device=device,
        optimizer=bound,
        binding=binding,
        lr_scheduler=schedule,
        collate_fn=collate_fn,
        process=process,
    )


def _refuse_shared(model: nn.Module, *, replaces: bool) -> None:
    """Raise ValueError for weights that another engine would continue to train.

    ``replaces``: the new optimizer updates masters instead of the parameters themselves. Only
    engines that both update the model's own parameters can share some.
    """
    if any(_shares(engine, model, replaces) for engine in active_engines):
        gc.collect()  # collect engines the script has dropped, on all ranks alike
    if any(_shares(engine, model, replaces) for engine in active_engines):
        raise ValueError(
            "another engine still trains parameters of this model: destroy() that engine, or "
            "build a new model for another initialize()"
        )


def _shares(engine: Engine, model: nn.Module, replaces: bool) -> bool:
    is_taken_over = engine.module in set(model.modules()) or not engine.sharding.has_model
    if is_taken_over or engine.optimizer is None:
        return False
    shared = set(_trainable(model)).intersection(engine.module.parameters())
    return bool(shared) and (replaces or not shared.issubset(engine.sharding.masters.values()))


def _agreed_plan(
    model: nn.Module, planned: Callable[[], Plan], check: Callable[[Plan], None]
) -> Plan:
    """Plan and ``check`` on every rank; a failure on one rank is raised on all."""
    plan, failure = None, None
    try:
        plan = planned()
        refuse_uncovered(plan)
        refuse_parallel(plan, model)
        refuse_insufficient_memory(plan, facts_of(model, None, None))
        refuse_unusable_files(plan)
        refuse_unloaded_weights(model)
        check(plan)
    except (ValueError, OSError) as error:
        failure = error
    stage = model.stage_id if isinstance(model, PipelineModule) else 0
    check_agreement(plan, model, failure, stage)
    if plan is None or failure is not None:
        raise failure or ValueError("no plan was made")
    return plan


def _refuse_untrained_stage(
    plan: Plan, model: nn.Module, optimizer: Any, parameters: list[Any] | None
) -> None:
    """Raise ValueError for a pipeline stage whose optimizer would have no parameters."""
    if not isinstance(model, PipelineModule) or isinstance(optimizer, Optimizer):
        return
    if plan.effective.optimizer is None and optimizer is None:
        return
    if not as_groups(_trainable(model) if parameters is None else parameters):
        first, end = model.parts[model.stage_id : model.stage_id + 2]
        raise ValueError(
            f"pipeline stage {model.stage_id}, layers {first} to {end - 1}, has no parameters to "
            "train: use fewer stages, another partition_method, or train one of its layers"
        )


def _named_config(args: Any) -> Any:
    """Return the config that the command line names; None if it names none."""
    named = (getattr(args, name, None) for name in ("deepspeed_config", "deepscale_config"))
    return next((each for each in named if each is not None and each != ""), None)


def _planned(plan: Plan | str | Path | None, configs: list[Config], **script: Any) -> Plan:
    """Return the given plan, or the launcher's, for this script's model."""
    if plan is None and not configs:
        plan = os.environ.get(launch_env.PLAN)
        if plan is None and launch_env.CONFIG in os.environ:
            configs = [os.environ[launch_env.CONFIG]]
    given = len(configs) + (plan is not None)
    if given != 1:
        raise ValueError(
            "initialize() requires exactly one config or plan: pass config=... or plan=..., or "
            "--deepspeed_config on the command line, or start the script with `dsconfig run` "
            f"({given} given)"
        )
    return plan_for(configs[0], **script) if plan is None else plan_from(plan, **script)


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _checkpoint_activations(plan: Plan, model: nn.Module) -> None:
    from dsengine.loop.activation_checkpointing import (
        RecomputationSettings,
        checkpoint_blocks,
        release_blocks,
    )

    release_blocks(model)
    if not plan.effective.activation_checkpointing.enabled:
        return
    root = describe(model).root
    blocks = [fact.name for fact in root.walk() if fact.repeated] if root is not None else []
    checkpoint_blocks(model, RecomputationSettings.of(plan.effective), blocks)


def _bound_optimizer(
    plan: Plan,
    sharding: Sharding,
    originals: Mapping[Tensor, str],
    optimizer: Any,
    groups: list[dict[str, Any]],
) -> Optimizer | None:
    if optimizer is not None:
        rebind(optimizer, originals, sharding.masters, sharding.shard)
        return optimizer
    named = plan.effective.optimizer
    if named is None:
        return None
    if is_muon(named.type):
        groups = split_for_muon(groups, named.params, originals)
    masters = masters_of_groups(groups, originals, sharding.masters)
    sparse = plan.effective.gradients.sparse
    offloaded = plan.effective.zero.offload_optimizer is not None
    return build_optimizer(named.type, named.params, masters, fuse=not sparse, offloaded=offloaded)


def _scheduler(plan: Plan, optimizer: Optimizer | None, given: Any) -> Any:
    if given is not None:
        if hasattr(given, "step"):
            return given
        return check_result("lr_scheduler", given(optimizer), "step")
    named = plan.effective.scheduler
    if named is None or optimizer is None:
        return None
    return build_schedule(named.type, named.params, optimizer)
