"""Train a tiny model that two ranks divide with the Trainer, save, and resume from the middle.

python resumed.py RESULT (tensor | sequence | expert) FOLDER STAGE
"""

import json
import sys
from pathlib import Path
from typing import Any

from accelerate.utils import set_seed

from frameworks.on_gloo import use_gloo
from frameworks.scripts.sequence import STEPS, parallelism, samples, settings, with_trainer
from training import expert_jobs, sequence_jobs

SAVED_AT = STEPS // 2


def main(axis: str, folder: str, stage: str) -> dict[str, Any]:
    use_gloo()
    config = settings(int(stage), accumulation=1)
    more: dict[str, Any] = {"save_strategy": "steps", "save_steps": SAVED_AT}
    if axis == "tensor":
        config["tensor_parallel"] = {"autotp_size": 2}
    elif axis == "expert":
        config["expert_parallel"] = {"enabled": True, "autoep_size": 2}
        # Otherwise the Trainer multiplies the load-balancing loss by the number of ranks.
        more["average_tokens_across_devices"] = False
    else:
        more["parallelism_config"] = parallelism()
    found = list[Any]()
    for resumed in (None, f"{folder}/checkpoint-{SAVED_AT}"):
        set_seed(len(found))
        if axis == "expert":
            model = expert_jobs.model_of("Mixtral", seed=5 + len(found))
        else:
            model = sequence_jobs.model_of("causal", divided=axis == "sequence")
        data = samples("causal", STEPS * (2 if axis == "expert" else 1))
        found.append(with_trainer(folder, model, data, dict(config), resumed, **more))
    return {"whole": found[0], "resumed": found[1]}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(main(*sys.argv[2:])))
