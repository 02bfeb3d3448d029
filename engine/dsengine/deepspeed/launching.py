"""DeepSpeed's launcher: ``dsengine deepspeed --num_gpus 2 train.py``.

Programs below ``dsengine`` find it as ``deepspeed``. Its flags select hosts and devices from the
same hostfile as ``dsconfig run``, and torchrun starts the ranks, in which dsengine replaces
deepspeed. Several hosts are started with ``dsconfig run --emit ssh``, or one by one with ``--no_ssh
--node_rank``.
"""

import argparse
import base64
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from dsconfig import hostfile
from dsconfig.features.deepspeed_names import FLAGS
from dsconfig.features.table import Status
from dsengine.communication.environment import DEFAULT_PORT
from dsengine.deepspeed.accelerators import get_accelerator
from dsengine.deepspeed.observing import logger, set_log_level_from_string
from dsengine.startup import child_environment
from dsengine.stderr import print_error

_ABOUT = "Start a script on the devices of one host, with dsengine in place of deepspeed."
DLTS_HOSTFILE = "/job/hostfile"
DEEPSPEED_ENVIRONMENT_NAME = os.environ.get("DS_ENV_FILE", ".deepspeed_env")
"""Where accelerate's multi-node launcher writes the environment of its processes."""
_ON_ONE_HOST = ("launcher", "launcher_args", "ssh_port", "no_ssh_check")
"""DeepSpeed's flags for reaching other hosts, ignored for one host."""
_REFUSED_OR_INERT = [name for name in FLAGS if " " not in name]
_SWITCHES = ("no_ssh_check", "force_multi", "bind_cores_to_rank", "save_pid")
_RANK = "dsengine.deepspeed.rank_command"
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


def parse_args(args: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the supported flags, with DeepSpeed's names and defaults."""
    parser = argparse.ArgumentParser(prog="deepspeed", description=_ABOUT)
    parser.add_argument("-H", "--hostfile", default=DLTS_HOSTFILE)
    parser.add_argument("-i", "--include", default="", metavar="HOST[:SLOT,...][@...]")
    parser.add_argument("-e", "--exclude", default="", metavar="HOST[:SLOT,...][@...]")
    parser.add_argument("--num_nodes", type=int, default=-1, help="use the first N hosts")
    parser.add_argument("--num_gpus", "--num_accelerators", type=int, default=-1, help="per host")
    parser.add_argument("--master_addr", default="")
    parser.add_argument("--master_port", type=int, default=DEFAULT_PORT)
    parser.add_argument("--no_ssh", action="store_true", help="start the ranks of one host only")
    parser.add_argument("--node_rank", type=int, default=-1, help="rank of that host")
    parser.add_argument("--module", action="store_true", help="the script is a module")
    parser.add_argument("--no_python", action="store_true", help="the script is a program")
    parser.add_argument("--no_local_rank", action="store_true", help="do not pass --local_rank")
    parser.add_argument("--log_level", help="debug, info, warning, error or critical")
    parser.add_argument("-q", "--quiet", action="store_true", help="log errors only")
    for name in (*_ON_ONE_HOST, *_REFUSED_OR_INERT):
        kind = "store_true" if name in _SWITCHES else "store"
        parser.add_argument(f"--{name}", action=kind, default=None, help=argparse.SUPPRESS)
    parser.add_argument("user_script")
    parser.add_argument("user_args", nargs=argparse.REMAINDER)
    return parser.parse_args(args)


def fetch_hostfile(hostfile_path: str) -> dict[str, int] | None:
    """Return the slots of each host, or None without a hostfile.

    Raises ValueError with the invalid line.
    """
    path = Path(hostfile_path)
    return _counted(hostfile.read(path)) if path.is_file() else None


def _parse_hostfile(hostfile_lines: Iterable[str]) -> dict[str, int]:
    return _counted(hostfile.parse(hostfile_lines))


def _counted(slots: hostfile.Slots) -> dict[str, int]:
    if not slots:
        raise ValueError("the hostfile lists no hosts: add a line `HOST slots=N` for each")
    return {name: len(indices) for name, indices in slots.items()}


def parse_resource_filter(
    host_info: Mapping[str, Sequence[int]], include_str: str = "", exclude_str: str = ""
) -> dict[str, list[int]]:
    """Return the slots of each host that remain after one of the filters.

    Raises ValueError for both filters at once, and for unknown hosts and slots.
    """
    left = hostfile.select(host_info, include_str, exclude_str)
    return {name: list(slots) for name, slots in left.items()}


def parse_inclusion_exclusion(
    resource_pool: Mapping[str, int], inclusion: str, exclusion: str
) -> dict[str, list[int]]:
    """Filter hosts given by their number of slots."""
    slots = {name: list(range(count)) for name, count in resource_pool.items()}
    return parse_resource_filter(slots, inclusion, exclusion)


def encode_world_info(world_info: Mapping[str, object]) -> str:
    """Return the slots of hosts as base64 of JSON."""
    return base64.urlsafe_b64encode(json.dumps(world_info).encode()).decode()


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Replace this process with torchrun for the ranks of this host.

    Signals to the process reach the ranks, and its exit code is that of the first rank that failed.
    Raises ValueError for contradictory flags, and for more than one host without ``--no_ssh``; as a
    program, without ``args``, prints the error and exits with 2.
    """
    try:
        argv, environment = _command(parse_args(args))
    except ValueError as error:
        if args is not None:
            raise
        print_error(f"deepspeed: error: {error}")
        raise SystemExit(2) from None
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(argv[0], argv, environment)


def _command(options: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """Return torchrun's command line and environment."""
    if options.quiet or options.log_level:
        set_log_level_from_string("error" if options.quiet else options.log_level)
    _check_flags(options)
    pool = fetch_hostfile(options.hostfile)
    if pool is None and options.num_nodes > 1:
        raise ValueError(f"--num_nodes {options.num_nodes}: no hostfile at {options.hostfile}")
    if pool is None:
        _show_all_devices(options)
        pool = {"localhost": max(get_accelerator().device_count(), options.num_gpus)}
    slots = parse_inclusion_exclusion(pool, options.include, options.exclude)
    names = list(slots)[: options.num_nodes if options.num_nodes > 0 else None]
    if options.num_gpus > 0:
        slots = {name: list(range(options.num_gpus)) for name in names}
    chosen = hostfile.Hosts(
        {name: tuple(slots[name]) for name in names}, ":" in options.include + options.exclude
    )
    return _torchrun(options, chosen), _environment(options, chosen)


def _check_flags(options: argparse.Namespace) -> None:
    """Raise ValueError for flags that are refused or contradict each other."""
    launcher = (options.launcher or "pdsh").lower()
    used = [name for name in _REFUSED_OR_INERT if vars(options)[name]]
    for name in (*used, f"launcher {launcher}"):
        flag = FLAGS.get(name)
        if flag is not None and flag.status is Status.REFUSED:
            raise ValueError(flag.text)
        if flag is not None:
            logger.warning(flag.text)
    if f"launcher {launcher}" not in FLAGS and launcher != "pdsh":
        raise ValueError(f"--launcher {launcher} is unknown: omit it")
    counted = options.num_nodes >= 0 or options.num_gpus >= 0
    if counted and (options.include or options.exclude):
        raise ValueError("--num_nodes and --num_gpus exclude --include and --exclude")
    if options.module and options.no_python:
        raise ValueError("--module and --no_python cannot be combined")
    is_file = not options.module and not options.no_python
    if is_file and not Path(options.user_script).exists():
        raise ValueError(f"can't open file {options.user_script!r}: no such file")


def _show_all_devices(options: argparse.Namespace) -> None:
    """Drop CUDA_VISIBLE_DEVICES if flags select devices, which are counted from 0, as DeepSpeed."""
    selects = options.include or options.exclude or options.num_gpus > 0
    if selects and (visible := os.environ.pop(VISIBLE_DEVICES, "")):
        logger.info(f"ignoring {VISIBLE_DEVICES}={visible} because flags select the devices")


def _torchrun(options: argparse.Namespace, chosen: hostfile.Hosts) -> list[str]:
    nodes = len(chosen.names)
    if not nodes:
        raise ValueError("no slots are left")
    if nodes > 1 and not options.no_ssh:
        raise ValueError(
            f"{nodes} hosts: `dsconfig run CONFIG --hostfile {options.hostfile} --emit ssh -- "
            f"{options.user_script}` prints the commands; or start each with --no_ssh --node_rank"
        )
    if options.no_ssh and not 0 <= options.node_rank < nodes:
        raise ValueError(f"--no_ssh: the --node_rank of {nodes} hosts is 0 to {nodes - 1}")
    first = hostfile.address(chosen.names[0])
    flags = [
        f"--{name}" for name in ("module", "no_python", "no_local_rank") if vars(options)[name]
    ]
    return [
        *(sys.executable, "-P", "-m", "dsengine.torchrun"),
        f"--nnodes={nodes}",
        f"--node-rank={max(options.node_rank, 0)}",
        f"--nproc-per-node={chosen.ranks}",
        f"--master-addr={options.master_addr or (first if nodes > 1 else '127.0.0.1')}",
        f"--master-port={options.master_port}",
        *("-m", _RANK, *flags, options.user_script, *options.user_args),
    ]


def _environment(options: argparse.Namespace, chosen: hostfile.Hosts) -> dict[str, str]:
    devices = chosen.devices(max(options.node_rank, 0))
    if devices is None:
        return child_environment(os.environ)
    logger.info(f"training on devices {devices}")
    return child_environment(os.environ | {VISIBLE_DEVICES: devices})


if __name__ == "__main__":
    main()
