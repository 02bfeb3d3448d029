"""``dsconfig run FILE|PLAN -- SCRIPT ...``: plan once, then run one process per rank.

Three steps: :func:`plan_of` makes the plan, :func:`launch` starts the ranks, :func:`display` shows
their progress until they exit.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory, mkstemp
from typing import TYPE_CHECKING, Annotated

import typer

import dsconfig
from dsconfig import examination, launch_env, os_errors
from dsconfig.commands import node_options, options, prepare
from dsconfig.commands.flags import Only
from dsconfig.commands.notes import note
from dsconfig.commands.printing import print_text
from dsconfig.commands.writing import write
from dsconfig.facts.request import FactsRequest
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project.errors import UsageError
from dsconfig.report.sizes import size

with lazy_imports():
    from dsconfig.commands import cluster_jobs, jobs, run_display, stopping, text_table
    from dsconfig.cost import step_time
    from dsconfig.facts import facts as empty
    from dsconfig.facts import machine
    from dsconfig.planner import plan as plans
    from dsconfig.runtimes import base

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.planner.plan import Plan
    from dsconfig.source import Document

PLACEHOLDERS = {"{config}": "resolved.json", "{plan}": "plan.json"}
"""Placeholders in the script's arguments, replaced by file paths."""

NAMES_DSENGINE = re.compile(r"\bdsengine\b")
SCRIPT_BYTES = 1 << 20
"""How much of a script is searched for an import of dsengine."""
INSTALL = "pip install 'dsconfig-zero[engine]'"
LAUNCHER = "dsengine.torchrun_launcher"
"""torchrun with its log in a separate file."""


class Engine(StrEnum):
    """What ``import deepspeed`` in a script imports."""

    DSENGINE = "dsengine"
    DEEPSPEED = "deepspeed"


RUNS = {Engine.DSENGINE: "dsengine.as_deepspeed", Engine.DEEPSPEED: "dsengine.with_deepspeed"}
"""Module that runs a script with the engine."""


Executor = Annotated[
    Engine | None,
    typer.Option(
        help="Engine behind `import deepspeed` in the script: dsengine or deepspeed (default: "
        "dsengine, unless the script imports dsengine itself)."
    ),
]
Grace = Annotated[
    int,
    typer.Option(help="Seconds that ranks have to exit after a signal.", min=0),
]


Stated = Annotated[
    FactsRequest,
    Only(
        "device model params training_args accelerate_config micro_batch global_batch accumulation "
        "seq_len precision learning_rate total_steps warmup_steps host_memory"
    ),
]
"""Facts of the plan. Kernels, adapters and degrees are decided by the script and the config."""


def run(
    context: typer.Context,
    file: prepare.ConfigOrPlan,
    script: Annotated[list[str], typer.Argument(metavar="-- SCRIPT [ARGS]...")],
    engine: Executor = None,
    *,
    nodes: node_options.NodeOptions,
    request: Stated,
    overrides: options.Overrides = None,
    grace: Grace = 30,
) -> None:
    """Run a training script under torchrun with a config or a plan.

    FILE is a config, or a plan written by `dsconfig plan ... -o plan.json`. The script calls
    dsengine.initialize(...) without a config. DSCONFIG_PLAN and DSCONFIG_FILE contain the paths of
    the plan and the resolved config; {plan} and {config} in the script's arguments are replaced by
    them.

    A script for DeepSpeed or for a framework that imports it runs unchanged on dsengine. With
    --engine deepspeed, it runs on the installed DeepSpeed, with the config resolved
    for that release. With --emit, a job script for a cluster is printed instead.

    The exit code is that of the job; 1 if there are errors in the config.
    """
    if file.endswith(".py"):
        raise UsageError(
            f"{file} is a script: specify a config first, as in: run ds.json -- {file}"
        )
    if not os_errors.is_file(script[0]):
        raise UsageError(f"{script[0]}: file not found; specify the training script")
    if nodes.emit is None and find_spec("torch") is None:
        raise UsageError("run requires torch, which is not installed: " + INSTALL)
    executor = Engine.DSENGINE if engine is None else engine
    if nodes.emit is None and executor is Engine.DEEPSPEED and find_spec("deepspeed") is None:
        raise UsageError(
            "--engine deepspeed requires DeepSpeed, which is not installed: pip install deepspeed"
        )
    program, requested = [*script, *context.args], nodes.requested()
    if nodes.emit is not None:
        nodes.reject_single_node_flags()
        plan, facts = plan_of(
            file, requested.gpus, requested.nodes or 1, request, overrides, executor
        )
        repeated = request.stated
        repeated |= {"set": overrides, "engine": engine, "nproc_per_node": requested.gpus}
        repeated |= {"grace": grace, "max_restarts": nodes.max_restarts}
        repeated |= {"join_timeout": nodes.join_timeout}
        command = jobs.command(_file_name(file), repeated, program)
        job = _job(plan, facts, nodes, requested, command, grace)
        write(None, _script(nodes.emit, job) + "\n", encoding_errors="surrogateescape")
        return
    address = nodes.address(requested)
    plan, facts = None, empty.Facts()
    if address is None or address.rank == 0:
        count = 1 if address is None else address.nodes
        plan, facts = plan_of(file, requested.gpus, count, request, overrides, executor)
        require_gpus(plan.mesh.world_size // plan.nodes, plan.nodes)
        lines = [_target_line(plan, engine), banner(plan), *_indivisible(plan, requested.least)]
        text = "\n".join(lines)
    else:
        text = f"dsconfig run: node {address.rank} of {address.nodes}, using the plan of node 0"
    note(text_table.fitted(text))
    rendezvous = address and {
        **address._asdict(),
        "min_nodes": requested.least or address.nodes,
        "fingerprint": node_options.fingerprint(file, program),
        "seconds": nodes.join_timeout,
        "ranks": requested.gpus,
        "gpus": len(machine.local_gpus()),
    }
    if engine is not None or not names_dsengine(script[0]):
        program = ["--no-python", sys.executable, "-P", "-u", "-m", RUNS[executor], *program]
    if nodes.local_addr is not None:
        program = [f"--local-addr={nodes.local_addr}", *program]
    program = [f"--max-restarts={nodes.max_restarts}", *program]
    known = run_display.Expected(ranks=0) if plan is None else expected(plan, facts)
    raise typer.Exit(_train(plan, program, known, grace, rendezvous))


def names_dsengine(script: str) -> bool:
    """Return whether a script names dsengine, and so chooses its engine itself."""
    with open(script, "rb") as file:  # noqa: PTH123
        return NAMES_DSENGINE.search(file.read(SCRIPT_BYTES).decode("utf-8", "replace")) is not None


def _job(
    plan: "Plan",
    facts: "Facts",
    nodes: node_options.NodeOptions,
    requested: node_options.RequestedNodes,
    command: Sequence[str],
    grace: int,
) -> "jobs.Job":
    """Return the run as a job of a cluster."""
    return jobs.Job(
        nodes=plan.nodes,
        ranks=plan.mesh.world_size // plan.nodes,
        command=command,
        notes=[banner(plan), *_memory_note(plan, facts), *_indivisible(plan, requested.least)],
        uses_gpus=facts.device is None or facts.device.kind != "cpu",
        restarts=nodes.max_restarts,
        grace=grace,
        least=requested.least,
        hosts=requested.hosts,
        endpoint=nodes.rdzv_endpoint,
        device=facts.device.name if facts.device else None,
    )


def _script(form: node_options.JobFormat, job: "jobs.Job") -> str:
    """Return the job in a format of ``--emit``."""
    match form:
        case node_options.JobFormat.SLURM:
            return jobs.slurm(job)
        case node_options.JobFormat.SSH:
            return jobs.ssh(job)
        case node_options.JobFormat.KUBEFLOW:
            return cluster_jobs.kubeflow(job)
        case node_options.JobFormat.SKYPILOT:
            return cluster_jobs.skypilot(job)


def _target_line(plan: "Plan", engine: Engine | None) -> str:
    """Return the headline about the program that executes the plan."""
    note = "" if engine else " (default; override with --engine)"
    return f"target: {base.runtime_of(plan.runtime).described}{note}"


def _indivisible(plan: "Plan", least: int | None) -> list[str]:
    """Return a note on the numbers of nodes that cannot divide the global batch."""
    ranks, batch = plan.mesh.world_size // plan.nodes, plan.batch.global_batch
    bad = [count for count in range(least or plan.nodes, plan.nodes) if batch % (count * ranks)]
    if not bad:
        return []
    listed = ", ".join(map(str, bad))
    return [
        f"note: {listed} nodes cannot divide a global batch of {batch}; the run would stop there"
    ]


def _file_name(file: str) -> str:
    if file == "-":
        raise UsageError("--emit requires a config file: the job cannot read stdin")
    return file


def _memory_note(plan: "Plan", facts: "Facts") -> list[str]:
    """Return a note that compares required and available memory per GPU."""
    needed, device = plan.memory.get("needed_bytes"), facts.device
    if needed is None or device is None or not device.memory_bytes:
        return []
    least = plan.memory.get("least_needed_bytes", needed)
    verdict = "may not fit" if least <= device.memory_bytes else "does not fit"
    hint = "" if needed <= device.memory_bytes else f": {verdict}, see `dsconfig tune`"
    return [f"requires {size(needed)} of {size(device.memory_bytes)} per {device.name}{hint}"]


def _train(
    plan: "Plan | None",
    program: list[str],
    known: "run_display.Expected",
    grace: int,
    rendezvous: "Mapping[str, object] | None",
) -> int:
    """Start the ranks of this node and show them until they exit; return the exit code."""
    with TemporaryDirectory(prefix="dsconfig-") as folder:
        events = Path(folder) / "events.jsonl"
        descriptor, name = mkstemp(prefix="dsconfig-run-", suffix=".log")
        os.close(descriptor)
        stopping.adopt_orphans()
        job = launch(plan, program, events, Path(name), grace, rendezvous)
        return display(job, events, Path(name), known)


def plan_of(
    file: str,
    gpus: int | None,
    nodes: int,
    request: FactsRequest,
    overrides: list[str] | None,
    executor: Engine,
) -> "tuple[Plan, Facts]":
    """Return the plan in ``file`` or of its config, and the facts.

    Exits with code 1 if ``executor`` cannot run it. Raises UsageError for flags that contradict a
    plan.
    """
    plan, facts = prepare.plan_in(file), empty.Facts()
    if plan is None:
        document = options.load(file, overrides)
        here = gpus or 1
        facts = options.stated_facts(replace(request, gpus=here * nodes, nodes=nodes))
        facts = options.with_this_machine(facts, ranks=False)
        if executor is Engine.DEEPSPEED:
            document = filled(document, facts)
        plan = prepare.planned(document, facts, executor, strict=True)
    elif plan.runtime != executor:
        raise UsageError(
            f"{file} is a plan for {plan.runtime}, not {executor}; specify its config instead"
        )
    else:
        prepare.reject_flags(file, {"set": overrides, **request.stated})
        if plan.nodes != nodes:
            raise UsageError(
                f"{file} is a plan for {plan.nodes} nodes, but this run has {nodes}: use --nnodes "
                f"{plan.nodes} --node-rank R --rdzv-endpoint HOST:PORT on each node, or plan again"
            )
        ranks = nodes * (gpus or plan.mesh.world_size // nodes)
        if ranks != plan.mesh.world_size:
            raise UsageError(
                f"{file} is a plan for {plan.mesh.world_size} ranks, but the flags specify "
                f"{ranks}; plan again with --gpus {ranks}"
            )
    refused = [row for row in plan.coverage if row.status is plans.Status.REFUSED]
    if refused and executor is Engine.DSENGINE:
        lines = "".join(f"\n  {row.pointer}: {row.by}" for row in refused)
        print_text(f"{file}: not supported by dsengine:{lines}", err=True)
        raise typer.Exit(prepare.FOUND)
    return plan, facts


def filled(document: "Document", facts: "Facts") -> "Document":
    """Return the document with each "auto" replaced, which DeepSpeed alone does not do."""
    known = options.completed(facts, document)
    resolution = examination.resolution(document, known, base.runtime_of("dsengine"))
    if not resolution.ledger:
        return document
    return dsconfig.read(dict(resolution.config), name=document.name)


def require_gpus(ranks: int, nodes: int) -> None:
    """Raise UsageError if this machine has GPUs, but fewer than ranks."""
    gpus, flag = len(machine.local_gpus()), "--gpus" if nodes == 1 else "--nproc-per-node"
    if 0 < gpus < ranks:
        raise UsageError(
            f"{ranks} ranks require {ranks} GPUs, but this machine has {gpus}: use {flag} {gpus}, "
            "or set CUDA_VISIBLE_DEVICES= to train on the CPU"
        )


def expected(plan: "Plan", facts: "Facts") -> "run_display.Expected":
    """Return the expected values that the display compares with."""
    known = plan.effective.scheduler
    steps = facts.training.total_steps if facts.training else None
    if steps is None and known is not None:
        steps = known.params.get("total_num_steps")
    flops, peak = None, facts.device.tflops_16bit if facts.device else None
    if peak and facts.model and facts.training and facts.training.sequence_length:
        flops = step_time.step_time(plan.effective, facts).useful_flops
    return run_display.Expected(
        ranks=plan.mesh.world_size,
        steps=steps,
        peak_bytes=plan.memory.get("peak_bytes"),
        on_cpu=facts.device is None or facts.device.kind == "cpu",
        flops_per_step=flops,
        peak_flops=peak * 1e12 if peak else None,
    )


def banner(plan: "Plan") -> str:
    """Return one line about the run: stage, precision, batch, optimizer and memory."""
    effective, batch = plan.effective, plan.batch
    optimizer = effective.optimizer
    rate = optimizer.params.get("lr") if optimizer else None
    parts = [
        f"stage {effective.zero.stage}",
        str(effective.numerics.precision),
        f"batch {batch.global_batch} = {batch.micro_batch} micro x "
        f"{batch.accumulation} accumulation x {batch.data_parallel} ranks",
    ]
    if optimizer is not None:
        parts.append(optimizer.type + ("" if rate is None else f" at {rate:g}"))
    if "needed_bytes" in plan.memory:
        parts.append(f"requires {size(plan.memory['needed_bytes'])} per rank")
    return f"dsconfig run: {', '.join(parts)}"


def launch(
    plan: "Plan | None",
    script: list[str],
    events: Path,
    log: Path,
    grace: int,
    rendezvous: "Mapping[str, object] | None" = None,
) -> "subprocess.Popen[bytes]":
    """Start the ranks of this node under torchrun, whose output goes to ``log``.

    The plan is stored next to ``events``; ranks have ``grace`` seconds to exit after a signal.
    ``rendezvous`` describes a run on several nodes, where other nodes receive the plan of node 0.
    """
    files = {placeholder: events.parent / name for placeholder, name in PLACEHOLDERS.items()}
    flags: list[str] = []
    if plan is not None:
        files["{plan}"].write_text(plan.to_json())
        files["{config}"].write_text(json.dumps(plan.effective.config, indent=2))
        flags = [] if rendezvous else [f"--nproc-per-node={plan.mesh.world_size // plan.nodes}"]
    settings = ""
    if rendezvous is not None:
        paths = {"plan": str(files["{plan}"]), "config": str(files["{config}"])}
        settings = json.dumps({**rendezvous, **paths})
    for placeholder, path in files.items():
        script = [argument.replace(placeholder, str(path)) for argument in script]
    # With -P, Python imports nothing of the working directory.
    command = [sys.executable, "-P", "-m", LAUNCHER, str(log), settings]
    environment = os.environ | {
        launch_env.PLAN: str(files["{plan}"]),
        launch_env.CONFIG: str(files["{config}"]),
        launch_env.EVENTS: str(events),
        stopping.GRACE: str(grace),
        "PYTHONUNBUFFERED": "1",  # show output immediately
    }
    launch_env.mark_default_threads(environment)
    environment.setdefault(launch_env.THREADS, "1")
    environment.pop(launch_env.ELASTIC, None)  # inherited from an enclosing run
    if rendezvous is not None:
        # Nodes count restarts separately and use the count as a key in the shared store. A new
        # store per round avoids mismatched counts and stale entries.
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        if rendezvous["min_nodes"] != rendezvous["nodes"]:
            environment[launch_env.ELASTIC] = "1"
    return subprocess.Popen(
        [*command, *flags, *script],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,  # Ctrl-C reaches it only once, forwarded by this process
    )


def display(
    job: "subprocess.Popen[bytes]", events: Path, log: Path, expected: "run_display.Expected"
) -> int:
    """Show the job until all its ranks have exited; return its exit code."""
    with stopping.forwarding_signals(job) as received:
        code = run_display.RunDisplay(job, events, log, expected).follow(received)
    return stopping.exit_code(code, received)
