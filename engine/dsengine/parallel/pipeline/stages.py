"""The stages of a live PipelineModule: their description, and their tied weights.

[Note: tied weights] A layer described by several TiedLayerSpecs of one key exists on each of their
stages, under the same name. All copies begin with the values of the first stage. At the end of a
step their gradients, averaged over data-parallel ranks by then, are summed over the stages, so that
every copy makes the same update; the norm counts them on the first stage only. Ranks with the same
shard of a stage form a group for this, since shards of equal tensors are equal.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dsconfig import ModuleFact, Plan, join_stages
from dsconfig.features.table import FEATURES
from dsengine.communication.devices import device_for
from dsengine.parallel.pipeline.module import PipelineError, PipelineModule, tied_parameters
from dsengine.parameters.model_tree import describe
from dsengine.topology import Topology, all_ranks


def collect_stages(module: PipelineModule) -> None:
    """Set ``module.tree``, the tree of all stages, on every rank. Collective over all ranks.

    Raises ValueError for parameters that are not in a layer, and on every rank if ranks divide
    layers, or describe a tied one, differently.
    """
    tree, layers = describe(module), module.layer_names()
    tied = _tied_forms(module)
    own = (_problem(module), module.parts, module.stage_id, tree.root, layers, tied)
    found: list[Any] = [None] * all_ranks().size()
    dist.all_gather_object(found, own, group=all_ranks())
    for rank, (problem, parts, *_) in enumerate(found):
        if problem:
            raise ValueError(f"rank {rank}: {problem}")
        if parts != found[0][1]:
            raise ValueError(
                f"rank {rank} divides layers into stages at {parts}, rank 0 at {found[0][1]}: "
                "build the same PipelineModule on every rank"
            )
    _check_tied([(each[2], each[5]) for each in found])
    stages: dict[int, tuple[ModuleFact, list[str]]] = {}
    for _, _, stage, root, layers, _ in found:
        stages.setdefault(stage, (root, layers))
    roots, names = zip(*(stages[stage] for stage in sorted(stages)), strict=True)
    module.tree = join_stages(tree, roots, names)


_Forms = dict[str, list[tuple[str, tuple[int, ...], str, bool]]]
"""By key of a tied layer, name, shape, dtype and whether it is trained of each parameter."""


def _tied_forms(module: PipelineModule) -> _Forms:
    return {
        key: [
            (name, tuple(each.shape), str(each.dtype), each.requires_grad)
            for name, each in layer.named_parameters()
        ]
        for key, layer in module.tied_modules.items()
    }


def _check_tied(found: Sequence[tuple[int, _Forms]]) -> None:
    """Raise ValueError if stages differ in the parameters of a tied layer: each is summed with the
    one at its place on the other stages."""
    first: dict[str, tuple[int, Any]] = {}
    for stage, forms in found:
        for key, own in forms.items():
            other, expected = first.setdefault(key, (stage, own))
            if own != expected:
                different = [
                    each for each in [*expected, *own] if each not in own or each not in expected
                ]
                raise ValueError(
                    f"the layers tied by TiedLayerSpec({key!r}) have other parameters on pipeline "
                    f"stage {stage} than on stage {other} ({(different or own)[0]}): use layers "
                    "with the same parameters, of which all or none are trained, or tie a module "
                    "that has only the shared weight"
                )


def _problem(module: PipelineModule) -> str:
    """Return why this stage cannot be trained, "" if it can."""
    layers = module.layer_names()
    for name, _ in module.named_parameters():
        if not any(name.startswith(f"{layer}.") for layer in layers):
            return (
                f"{name!r} is a parameter of the PipelineModule itself, whose copies on several "
                "stages would diverge: move it to a layer"
            )
    if type(module).get_additional_losses is not PipelineModule.get_additional_losses:
        return FEATURES["pipeline_additional_losses"].text
    return ""


def select_stage(module: nn.Module, plan: Plan, topology: Topology) -> None:
    """Give the copies of tied weights the values of the first stage that has them. Collective.

    Each rank has built the layers of its stage. Raises PipelineError for another model.
    """
    if not isinstance(module, PipelineModule):
        raise PipelineError(
            f"the plan has {plan.mesh.pipeline} pipeline stages, but the model is "
            f"{type(module).__name__}: build it as a PipelineModule"
        )
    groups = tied_groups(module, topology)
    for _, stages, parameter in tied_parameters(module):
        group = groups[stages]
        assert group is not None
        first = dist.get_global_rank(group, 0)
        with torch.no_grad():
            values = parameter.detach().to(device_for(group)).contiguous()
            dist.broadcast(values, first, group=group)
            parameter.copy_(values)


def tied_names(module: PipelineModule) -> list[tuple[str, tuple[int, ...]]]:
    """Return name and stages of each weight of this stage that others have too."""
    return [(name, stages) for name, stages, _ in tied_parameters(module)]


def tied_groups(
    module: PipelineModule, topology: Topology
) -> dict[tuple[int, ...], dist.ProcessGroup | None]:
    """Return the groups of ranks with the same shard on stages that share weights. Collective."""
    several = (stages for stages in module.tied_stages.values() if len(stages) > 1)
    return {stages: topology.group_of_stages(stages) for stages in dict.fromkeys(several)}
