"""Trains, saves half way, goes on; or loads and goes on, at each of several stages."""

from typing import Any

import torch
from toy import ToyModel, bare, finish, named_parameters_for, shard, start, train_step

from dsengine.checkpoint import Checkpointer, TrainingState


class Counters:
    def __init__(self) -> None:
        self.steps = 0

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.steps = state["steps"]


def build(stage: int, seed: int) -> tuple[Any, Any, Any, Counters]:
    torch.manual_seed(seed)
    model = shard(ToyModel(), stage)
    optimizer = torch.optim.AdamW(named_parameters_for(model), lr=0.02, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.5)
    return model, optimizer, scheduler, Counters()


def state_of(model: Any, optimizer: Any, scheduler: Any, counters: Counters) -> TrainingState:
    return TrainingState(
        module=bare(model),
        optimizer=optimizer,
        parts={"lr_scheduler": scheduler, "counters": counters},
    )


def go_on(run: tuple[Any, Any, Any, Counters], stage: int, steps: int) -> list[float]:
    model, optimizer, scheduler, counters = run
    losses = []
    for _ in range(steps):
        losses.append(train_step(model, optimizer, stage, counters.steps))
        scheduler.step()
        counters.steps += 1
    return losses


def main() -> None:
    options = start()
    checkpointer = Checkpointer(asynchronous=options.get("asynchronous", False))
    result: dict[str, Any] = {}
    for stage in options["stages"]:
        run = build(stage, seed=5 if options["save"] else 6)
        if options["save"]:
            go_on(run, stage, 7)
            checkpointer.save(
                state_of(*run), options["dir"], "global_step7", client_state={"epoch": 2}
            )
        else:
            path, client = checkpointer.load(state_of(*run), options["dir"])
            result["client"] = client
            result["path"] = path
        result[str(stage)] = go_on(run, stage, 10)
        result["calls"] = int(bare(run[0]).calls)
    checkpointer.close()
    finish(options, result)


main()
