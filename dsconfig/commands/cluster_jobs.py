"""Job descriptions for clusters that start containers: Kubeflow's TrainJob, a SkyPilot task.

Both start ``dsconfig run`` once per node, which reads rank and address of node 0 from the
launcher's environment. The working directory is that of the container or workdir.
"""

import re
from typing import TYPE_CHECKING, Any

from dsconfig.project.errors import UsageError, usage
from dsconfig.report import writers

if TYPE_CHECKING:
    from dsconfig.commands.jobs import Job

IMAGE = "IMAGE"
"""Placeholder: an image with dsconfig-zero[engine], the script and its data."""
RUNTIME = "torch-distributed"
"""ClusterTrainingRuntime of a standard installation of Kubeflow's Trainer."""
LONGEST_NAME = 40
GPU = "nvidia.com/gpu"
SKYPILOT_GPUS = (
    (r"A100.*80", "A100-80GB"),
    (r"V100.*32", "V100-32GB"),
    *(
        (rf"{name}\b", name)
        for name in ("H100", "H200", "B200", "A100", "L40S", "L40", "L4", "A10G", "V100", "T4")
    ),
)
"""Patterns of the beginning of device names, and SkyPilot's name; the first match counts."""


def kubeflow(job: "Job") -> str:
    """Return a TrainJob (trainer.kubeflow.org/v1alpha1). Raises UsageError for hosts and ranges."""
    _reject_placement(job, "kubeflow")
    trainer: dict[str, Any] = {
        "image": IMAGE,
        "command": ["dsconfig", *map(writers.kubernetes, job.command)],
        "numNodes": job.nodes,
        "numProcPerNode": job.ranks,
    }
    if job.uses_gpus:
        trainer["resourcesPerNode"] = {"limits": {GPU: str(job.ranks)}}
    entries = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": _resource_name(job.name)},
        "spec": {"runtimeRef": {"name": RUNTIME}, "trainer": trainer},
    }
    advice = f"Replace {IMAGE} by an image with dsconfig-zero[engine], the config and the script"
    return _yaml(job, entries, advice)


def skypilot(job: "Job") -> str:
    """Return a task for ``sky launch``. Raises UsageError for hosts and ranges of nodes."""
    _reject_placement(job, "skypilot")
    entries: dict[str, Any] = {"name": _resource_name(job.name), "num_nodes": job.nodes}
    advice = "The working directory is copied to every node"
    if job.uses_gpus:
        kind = _gpu_of_skypilot(job.device or "")
        if kind is None:
            raise UsageError(
                "--emit skypilot requires the GPU to request: use --device with one of "
                + ", ".join(sky for _, sky in SKYPILOT_GPUS)
            )
        entries["resources"] = {"accelerators": f"{kind}:{job.ranks}"}
    entries |= {
        "workdir": ".",
        "setup": "pip install 'dsconfig-zero[engine]'",
        "run": writers.shell(["dsconfig", *job.command]),
    }
    return _yaml(job, entries, advice)


def _gpu_of_skypilot(device: str) -> str | None:
    return next((sky for pattern, sky in SKYPILOT_GPUS if re.match(pattern, device)), None)


def _reject_placement(job: "Job", form: str) -> None:
    """Raise UsageError for what the cluster itself decides."""
    if job.hosts is not None:
        raise UsageError(f"--emit {form}: the cluster chooses the hosts; omit --hostfile")
    if job.least is not None:
        raise UsageError(f"--emit {form} starts a fixed number of nodes: specify --nnodes N")
    if job.endpoint is not None:
        raise UsageError(f"--emit {form}: the cluster sets the address of node 0; omit it")


def _yaml(job: "Job", entries: dict[str, Any], advice: str) -> str:
    comments = "".join(f"{writers.comment(note)}\n" for note in (*job.notes, advice))
    with usage("--emit"):
        return comments + writers.yaml(entries).rstrip()


def _resource_name(name: str) -> str:
    """Return a name that Kubernetes and SkyPilot accept: lower case, digits, ``-``; a letter first.

    Kubernetes appends suffixes to the names of the resources that it creates, of at most 63.
    """
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).lstrip("-0123456789")
    return words[:LONGEST_NAME].strip("-") or "train"
