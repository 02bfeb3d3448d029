"""The optimizer's state by name: what a load replaces, and what it leaves."""

import torch
from torch import nn

from dsengine.checkpoints.state import NamedOptimizer


def optimizer_of(*parameters: nn.Parameter) -> NamedOptimizer:
    optimizer = torch.optim.AdamW(parameters, lr=0.1, amsgrad=True)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    names = [f"p{number}" for number in range(len(parameters))]
    return NamedOptimizer(optimizer, dict(zip(names, parameters, strict=True)), [names])


def test_state_outside_the_groups_is_saved() -> None:
    parameters = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    named = optimizer_of(*parameters)
    del named.optimizer.param_groups[0]["params"][1]
    reduced = NamedOptimizer(named.optimizer, named.parameters, [["p0"]])
    assert {key.partition(":")[0] for key in reduced.tensors()} == {"optimizer.p0", "optimizer.p1"}


def test_adopted_states_replace_all_others_unless_they_are_kept() -> None:
    parameter = nn.Parameter(torch.ones(2))
    loaded = {"optimizer.p0:exp_avg": torch.full((2,), 7.0)}
    named = optimizer_of(parameter)
    named.adopt(loaded, keep=True)
    state = named.optimizer.state[parameter]
    assert state["exp_avg"].tolist() == [7.0, 7.0] and "max_exp_avg_sq" in state
    named.adopt(loaded)
    assert set(named.optimizer.state[parameter]) == {"exp_avg"}
