"""``dsconfig run FILE -- SCRIPT ...``: check the config, then start one process per rank."""

import os
import subprocess
import sys
from typing import Annotated

import typer

from dsconfig.commands import options

CONFIG_VARIABLE = "DSCONFIG_FILE"
"""Where the started script finds its config; dsengine.initialize reads it."""

Ranks = Annotated[
    int, typer.Option("--gpus", "--nproc", help="Processes on this node, one per device.", min=1)
]


def run(
    context: typer.Context,
    file: options.ConfigFile,
    script: Annotated[list[str], typer.Argument(metavar="-- SCRIPT [ARGS]...")],
    gpus: Ranks = 1,
    nodes: options.Nodes = None,
    device: options.Device = None,
    model: options.Model = None,
    micro_batch: options.MicroBatch = None,
    global_batch: options.GlobalBatch = None,
    seq_len: options.SequenceLength = None,
    overrides: options.Overrides = None,
) -> None:
    """Validate and resolve FILE, then train: SCRIPT runs under torchrun with the result.

    The script calls dsengine.initialize(...) without a config, or with the file named by the
    environment variable DSCONFIG_FILE. {config} among its arguments becomes that path.
    """
    from dsconfig.commands.prepare import resolved

    document = options.load(file, overrides)
    facts = options.facts_from(
        world_size=gpus * (nodes or 1),
        nodes=nodes,
        device=device,
        model=model,
        micro_batch=micro_batch,
        global_batch=global_batch,
        sequence_length=seq_len,
    )
    resolution = resolved(document, facts, "dsengine")
    raise typer.Exit(launch(resolution.config, [*script, *context.args], gpus))


def launch(config: dict[str, object], script: list[str], ranks: int) -> int:
    """Start the ranks under torchrun and wait. Returns the exit code of the job."""
    import json
    import tempfile
    from pathlib import Path

    from dsconfig.commands.errors import UsageError

    if not Path(script[0]).is_file():
        raise UsageError(f"no script at {script[0]}")
    with tempfile.TemporaryDirectory(prefix="dsconfig-") as folder:
        path = Path(folder) / "resolved.json"
        path.write_text(json.dumps(config, indent=2))
        arguments = [word.replace("{config}", str(path)) for word in script]
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={ranks}", *arguments]
        environment = {**os.environ, CONFIG_VARIABLE: str(path)}
        environment.setdefault("OMP_NUM_THREADS", "1")
        process = subprocess.Popen(command, env=environment)
        return _wait(process)


def _wait(process: "subprocess.Popen[bytes]") -> int:
    """Wait; on Ctrl-C let the launcher stop its ranks first."""
    try:
        return process.wait()
    except KeyboardInterrupt:
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
        return 130
