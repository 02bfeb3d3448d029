"""``dsconfig run --emit kubeflow`` and ``skypilot``: what their own programs accept."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from command_line import Done, run
from dsconfig.commands import cluster_jobs, node_options

CONFIG = '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}'
FLAGS = ("--gpus", 16, "--nnodes", 2, "--device", "a100-80gb", "--max-restarts", 1)
PROGRAM = ("--", "train.py", "--lr", "1e-4", "it's")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ds.json").write_text(CONFIG)
    (tmp_path / "train.py").write_text("")
    return tmp_path


def emitted(folder: Path, form: str, *flags: object) -> Done:
    return run("run", "ds.json", *(flags or FLAGS), "--emit", form, *PROGRAM, cwd=folder)


def parsed(folder: Path, form: str) -> dict[str, Any]:
    done = emitted(folder, form)
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)


def test_train_job_starts_dsconfig_on_each_node(folder: Path) -> None:
    job = parsed(folder, "kubeflow")
    trainer = job["spec"]["trainer"]
    assert (job["kind"], job["metadata"]["name"]) == ("TrainJob", "train")
    assert (
        trainer["numNodes"] == 2 and trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"] == "8"
    )
    command = trainer["command"]
    assert command[:3] == ["dsconfig", "run", "ds.json"]
    assert command[command.index("--") :] == list(PROGRAM)
    assert command[command.index("--max-restarts") + 1] == "1"


def test_nodes_come_from_the_environment_of_the_trainer() -> None:
    environment = {
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "train-node-0-0.train",
        "PET_MASTER_PORT": "29500",
    }
    assert node_options.node_address(environment) == (2, 1, "train-node-0-0.train:29500")


def test_task_of_skypilot_requests_the_gpus(folder: Path) -> None:
    task = parsed(folder, "skypilot")
    assert task["resources"] == {"accelerators": "A100-80GB:8"} and task["num_nodes"] == 2
    assert task["run"].startswith("dsconfig run ds.json ") and "'it'\"'\"'s'" in task["run"]


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("V100-SXM2-32GB", "V100-32GB"),
        ("V100-PCIe-16GB", "V100"),
        ("L40", "L40"),
        ("L40S", "L40S"),
        ("L4", "L4"),
        ("H100-NVL-94GB", "H100"),
        ("GH200-96GB", None),
        ("GB200-186GB", None),
    ],
)
def test_gpu_of_skypilot_is_the_one_of_the_run(device: str, expected: str | None) -> None:
    assert cluster_jobs._gpu_of_skypilot(device) == expected


@pytest.mark.parametrize(
    ("form", "flags", "message"),
    [
        (
            "kubeflow",
            ("--nnodes", "1:2", "--max-restarts", 1, "--gpus", 4),
            "a fixed number of nodes",
        ),
        ("skypilot", ("--gpus", 2), "requires the GPU to request"),
        ("skypilot", ("--gpus", 2, "--rdzv-endpoint", "a:1"), "the cluster sets the address"),
    ],
)
def test_what_the_cluster_decides_is_refused(
    folder: Path, form: str, flags: tuple[object, ...], message: str
) -> None:
    done = emitted(folder, form, *flags)
    assert done.returncode == 2 and message in done.stderr


@pytest.mark.live
def test_kubeflows_models_keep_every_key(folder: Path) -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models")
    job = parsed(folder, "kubeflow")
    assert models.TrainerV1alpha1TrainJob.from_dict(job).to_dict() == job


@pytest.mark.live
def test_skypilots_schema_accepts_the_task(folder: Path) -> None:
    """SkyPilot has an environment of its own: `make .skypilot/ready` creates it."""
    python = Path(__file__).parents[2] / ".skypilot" / "bin" / "python"
    if not python.exists():
        pytest.skip("SkyPilot is not installed: make .skypilot/ready")
    (folder / "task.yaml").write_text(yaml.safe_dump(parsed(folder, "skypilot")))
    check = (
        "import jsonschema, yaml; from sky.utils import schemas; "
        "jsonschema.validate(yaml.safe_load(open('task.yaml')), schemas.get_task_schema())"
    )
    environment = {**os.environ, "SKYPILOT_DISABLE_USAGE_COLLECTION": "1", "HOME": str(folder)}
    done = subprocess.run(
        [python, "-c", check], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
