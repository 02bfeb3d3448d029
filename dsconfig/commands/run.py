"""``dsconfig run FILE|PLAN -- SCRIPT ...``: plan once, then one process per rank executes the plan.

Three steps, each a function: :func:`plan_of` decides the run, :func:`launch` starts its ranks,
:func:`display` stays with them until they end.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory, mkstemp
from typing import TYPE_CHECKING, Annotated

import typer

import dsconfig
from dsconfig import launch_env
from dsconfig.commands import nodes as places
from dsconfig.commands import options, prepare
from dsconfig.commands.errors import UsageError
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report.sizes import size

with lazy_imports():
    from dsconfig.commands import jobs, stopping, text_table, watching
    from dsconfig.cost import step_time
    from dsconfig.facts import facts as empty
    from dsconfig.facts import machine
    from dsconfig.planner import plan as plans

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.planner.plan import Plan
    from dsconfig.source import Document

PLACEHOLDERS = {"{config}": "resolved.json", "{plan}": "plan.json"}
"""Words among the script's arguments that become the path of a file."""

INSTALL = "pip install 'dsconfig-zero[engine]'"
LAUNCHER = "dsengine.torchrun_launcher"
"""torchrun, with its own words apart."""


class Engine(StrEnum):
    """Whom a script's ``import deepspeed`` means."""

    DSENGINE = "dsengine"
    DEEPSPEED = "deepspeed"


RUNS = {Engine.DSENGINE: "dsengine.as_deepspeed", Engine.DEEPSPEED: "dsengine.with_deepspeed"}
"""The module that runs a script so."""


Executor = Annotated[
    Engine | None,
    typer.Option(help="What the script imports as deepspeed: dsengine in its place, or itself."),
]
Grace = Annotated[
    int,
    typer.Option(help="Seconds that ranks have to end after a signal; torch 2.11 gives 30.", min=0),
]


@options.with_groups
@options.with_flags(
    "device model params training_args accelerate_config micro_batch global_batch accumulation "
    "seq_len precision learning_rate total_steps warmup_steps host_memory"
)
def run(
    context: typer.Context,
    file: prepare.ConfigOrPlan,
    script: Annotated[list[str], typer.Argument(metavar="-- SCRIPT [ARGS]...")],
    engine: Executor = None,
    *,
    where: places.Where,
    flags: Mapping[str, object],
    overrides: options.Overrides = None,
    grace: Grace = 30,
) -> None:
    """Plan the run of FILE once, then train: SCRIPT runs under torchrun, every rank by that plan.

    FILE may be a plan as well (`dsconfig plan ... -o plan.json`). The script calls
    dsengine.initialize(...) without a config; the plan is named by the environment variable
    DSCONFIG_PLAN, its config by DSCONFIG_FILE. {plan} and {config} among the script's arguments
    become these paths. With --engine dsengine a script written for DeepSpeed, or for a framework
    that imports it, runs as it is. With --engine deepspeed it runs on the DeepSpeed that is
    installed: the config is judged and resolved for that release, {config} names the result, and
    what is held is compared with the estimate for DeepSpeed. With --emit slurm or ssh the job that
    starts this on a cluster is printed, and nothing is started.
    """
    if not Path(script[0]).is_file():
        raise UsageError(f"no script at {script[0]}")
    if where.emit is None and find_spec("torch") is None:
        raise UsageError("run trains with torch, which is not installed: " + INSTALL)
    executor = Engine.DSENGINE if engine is None else engine
    if where.emit is None and executor is Engine.DEEPSPEED and find_spec("deepspeed") is None:
        raise UsageError("--engine deepspeed: it is not installed: pip install deepspeed")
    program, wanted = [*script, *context.args], where.wanted()
    if where.emit is not None:
        where.insist_on_all_nodes()
        made, facts = plan_of(file, wanted.gpus, wanted.nodes or 1, flags, overrides, executor)
        again = dict(flags)
        again |= {"set": overrides, "engine": engine, "gpus": wanted.gpus, "grace": grace}
        again |= {"max_restarts": where.max_restarts, "join_timeout": where.join_timeout}
        command = jobs.command(_of_a_file(file), again, program)
        job = _job(made, facts, where, wanted, command, grace)
        typer.echo(jobs.slurm(job) if where.emit is places.Form.SLURM else jobs.ssh(job))
        return
    place = where.place(wanted)
    made, facts = None, empty.Facts()
    if place is None or place.rank == 0:
        of = 1 if place is None else place.nodes
        made, facts = plan_of(file, wanted.gpus, of, flags, overrides, executor)
        insist_on_cards(made.mesh.world_size // made.nodes)
        said = "\n".join([banner(made), *_unshared(made, wanted.least)])
    else:
        said = f"dsconfig run: node {place.rank} of {place.nodes}, by the plan of node 0"
    typer.echo(text_table.fitted(said), err=True)
    rendezvous = place and {
        **place._asdict(),
        "min_nodes": wanted.least or place.nodes,
        "fingerprint": places.fingerprint(file, program),
        "seconds": where.join_timeout,
        "ranks": wanted.gpus,
        "gpus": len(machine.local_gpus()),
    }
    if engine is not None:
        program = ["-m", RUNS[engine], *program]
    if where.local_addr is not None:
        program = [f"--local-addr={where.local_addr}", *program]
    program = [f"--max-restarts={where.max_restarts}", *program]
    known = watching.Expected(ranks=0) if made is None else expected(made, facts)
    raise typer.Exit(_train(made, program, known, grace, rendezvous))


def _job(
    made: "Plan",
    facts: "Facts",
    where: places.Where,
    wanted: places.Wanted,
    command: Sequence[str],
    grace: int,
) -> "jobs.Job":
    """The run as a job of a cluster."""
    return jobs.Job(
        nodes=made.nodes,
        ranks=made.mesh.world_size // made.nodes,
        command=command,
        notes=[banner(made), *_room(made, facts), *_unshared(made, wanted.least)],
        on_cards=facts.device is None or facts.device.kind != "cpu",
        restarts=where.max_restarts,
        grace=grace,
        least=wanted.least,
        hosts=wanted.hosts,
        endpoint=where.rdzv_endpoint,
    )


def _unshared(made: "Plan", least: int | None) -> list[str]:
    """With which numbers of nodes an elastic run would end, for they cannot share its batch."""
    ranks, batch = made.mesh.world_size // made.nodes, made.batch.global_batch
    bad = [each for each in range(least or made.nodes, made.nodes) if batch % (each * ranks)]
    if not bad:
        return []
    listed = ", ".join(map(str, bad))
    return [f"note: {listed} nodes cannot share a global batch of {batch}; the run would end there"]


def _of_a_file(file: str) -> str:
    if file == "-":
        raise UsageError("--emit: the job reads the config again, so name a file, not -")
    return file


def _room(made: "Plan", facts: "Facts") -> list[str]:
    """How what a card has to have compares with what it has."""
    needed, card = made.memory.get("needed_bytes"), facts.device
    if needed is None or card is None or not card.memory_bytes:
        return []
    least = made.memory.get("least_needed_bytes", needed)
    may = "perhaps " if least <= card.memory_bytes else ""
    verdict = "" if needed <= card.memory_bytes else f": {may}too much, see `dsconfig tune`"
    return [f"{size(needed)} of the {size(card.memory_bytes)} of one {card.name}{verdict}"]


def _train(
    made: "Plan | None",
    program: list[str],
    known: "watching.Expected",
    grace: int,
    rendezvous: "Mapping[str, object] | None",
) -> int:
    """Start this node's ranks, and stay with them until they end; return the exit code."""
    with TemporaryDirectory(prefix="dsconfig-") as folder:
        events = Path(folder) / "events.jsonl"
        descriptor, name = mkstemp(prefix="dsconfig-run-", suffix=".log")
        os.close(descriptor)
        stopping.adopt_orphans()
        job = launch(made, program, events, Path(name), grace, rendezvous)
        return display(job, events, Path(name), known)


def plan_of(
    file: str,
    gpus: int | None,
    nodes: int,
    about_the_world: Mapping[str, object],
    overrides: list[str] | None,
    executor: Engine,
) -> "tuple[Plan, Facts]":
    """The plan in ``file``, or that of the config in it, and what is known of the world. Exits 1
    when ``executor`` cannot run it.

    Raises UsageError for flags that a plan has decided already, and differently.
    """
    made, facts = prepare.plan_in(file), empty.Facts()
    if made is None:
        document = options.load(file, overrides)
        here = gpus or 1
        facts = options.facts_from(gpus=here * nodes, nodes=nodes, **about_the_world)
        facts = options.with_this_machine(facts, ranks=False)
        if executor is Engine.DEEPSPEED:
            document = filled(document, facts)
        made = prepare.planned(document, facts, executor, strict=True)
    elif made.runtime != executor:
        raise UsageError(f"{file} is a plan for {made.runtime}, not {executor}: give its config")
    else:
        prepare.reject_flags(file, {"set": overrides, **about_the_world})
        if made.nodes != nodes:
            raise UsageError(
                f"{file} is a plan for {made.nodes} nodes, this run has {nodes}: on each of them "
                f"--nnodes {made.nodes} --node-rank R --rdzv-endpoint HOST:PORT, or plan again"
            )
        ranks = nodes * (gpus or made.mesh.world_size // nodes)
        if ranks != made.mesh.world_size:
            raise UsageError(
                f"{file} is a plan for {made.mesh.world_size} ranks, the flags ask for {ranks}; "
                f"plan again with --gpus {ranks}"
            )
    refused = [row for row in made.coverage if row.status is plans.Status.REFUSED]
    if refused and executor is Engine.DSENGINE:
        lines = "".join(f"\n  {row.pointer}: {row.by}" for row in refused)
        print(f"{file}: this asks for what dsengine refuses:{lines}", file=sys.stderr)
        raise typer.Exit(prepare.FOUND)
    return made, facts


def filled(document: "Document", facts: "Facts") -> "Document":
    """The document with a value for each "auto", which DeepSpeed by itself does not know."""
    known = options.completed(facts, document)
    resolution = dsconfig.resolve(document, known, runtime="dsengine")
    if not resolution.ledger:
        return document
    return dsconfig.read(dict(resolution.config), name=document.name)


def insist_on_cards(ranks: int) -> None:
    """Raises UsageError where there are cards, and too few for the ranks of this node."""
    cards = len(machine.local_gpus())
    if 0 < cards < ranks:
        raise UsageError(
            f"{ranks} ranks need {ranks} cards of their own, and this machine shows {cards}: "
            f"--gpus {cards}, or CUDA_VISIBLE_DEVICES= in the environment to train on the processor"
        )


def expected(made: "Plan", facts: "Facts") -> "watching.Expected":
    """What the run is held against while it goes on."""
    known = made.effective.scheduler
    steps = facts.training.total_steps if facts.training else None
    if steps is None and known is not None:
        steps = known.params.get("total_num_steps")
    flops, peak = None, facts.device.tflops_16bit if facts.device else None
    if peak and facts.model and facts.training and facts.training.sequence_length:
        flops = step_time.step_time(made.effective, facts).useful_flops
    return watching.Expected(
        ranks=made.mesh.world_size,
        steps=steps,
        peak_bytes=made.memory.get("peak_bytes"),
        on_cpu=facts.device is None or facts.device.kind == "cpu",
        flops_per_step=flops,
        peak_flops=peak * 1e12 if peak else None,
    )


def banner(made: "Plan") -> str:
    """What is about to run, in a line: stage, precision, batch, rate, and what a rank needs."""
    settled, batch = made.effective, made.batch
    optimizer = settled.optimizer
    rate = optimizer.params.get("lr") if optimizer else None
    said = [
        f"stage {settled.zero.stage}",
        str(settled.numerics.precision),
        f"batch {batch.global_batch} = {batch.micro_batch} x {batch.accumulation} accumulation x "
        f"{batch.data_parallel} ranks",
    ]
    if optimizer is not None:
        said.append(optimizer.type + ("" if rate is None else f" at {rate:g}"))
    if "needed_bytes" in made.memory:
        said.append(f"needs {size(made.memory['needed_bytes'])} per rank")
    return f"dsconfig run: {', '.join(said)}"


def launch(
    made: "Plan | None",
    script: list[str],
    events: Path,
    log: Path,
    grace: int,
    rendezvous: "Mapping[str, object] | None" = None,
) -> "subprocess.Popen[bytes]":
    """Start this node's ranks under torchrun, whose own words go to ``log``. The plan lies beside
    ``events`` while they run; ranks have ``grace`` seconds to end after a signal. ``rendezvous`` is
    that of several nodes; without a plan it comes from there.
    """
    files = {word: events.parent / name for word, name in PLACEHOLDERS.items()}
    words: list[str] = []
    if made is not None:
        files["{plan}"].write_text(made.to_json())
        files["{config}"].write_text(json.dumps(made.effective.config, indent=2))
        words = [f"--nproc-per-node={made.mesh.world_size // made.nodes}"] if not rendezvous else []
    told = ""
    if rendezvous is not None:
        paths = {"plan": str(files["{plan}"]), "config": str(files["{config}"])}
        told = json.dumps({**rendezvous, **paths})
    for word, path in files.items():
        script = [each.replace(word, str(path)) for each in script]
    command = [sys.executable, "-m", LAUNCHER, str(log), told]
    environment = os.environ | {
        launch_env.PLAN: str(files["{plan}"]),
        launch_env.CONFIG: str(files["{config}"]),
        launch_env.EVENTS: str(events),
        stopping.GRACE: str(grace),
        "PYTHONUNBUFFERED": "1",  # what a rank prints is seen when it prints it
    }
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment.pop(launch_env.ELASTIC, None)  # that of a run around this one
    if rendezvous is not None:
        # Nodes count restarts each for itself, and look for the others under that number in a
        # store they share. One of its own for every round knows no number, and nothing old.
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        if rendezvous["min_nodes"] != rendezvous["nodes"]:
            environment[launch_env.ELASTIC] = "1"
    return subprocess.Popen(
        [*command, *words, *script],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,  # a terminal's Ctrl-C comes to it once, from here
    )


def display(
    job: "subprocess.Popen[bytes]", events: Path, log: Path, expected: "watching.Expected"
) -> int:
    """Show the job until it and all its ranks have ended; return its exit code."""
    with stopping.forwarding_signals(job) as received:
        code = watching.Watching(job, events, log, expected).follow(received)
    return stopping.exit_code(code, received)
