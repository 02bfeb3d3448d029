"""Facts of a training command that are stated twice, where one value is lost without a message.

Options of launchers, the environment, ``#SBATCH`` and accelerate's YAML name ranks, nodes, devices
and configs. An option that replaces a setting of a YAML is used on purpose and not reported.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dsconfig.report import Diagnostic, Effect, Range
from dsconfig.source import findings, plugin_settings, started_ranks
from dsconfig.source.document import LAUNCH, Document, Launcher
from dsconfig.source.pointer import ABSENT, value_at
from dsconfig.source.positions import LineIndex
from dsconfig.source.shell_script import CONFIG_OPTIONS, Script
from dsconfig.source.started_ranks import count

DEVICES = "CUDA_VISIBLE_DEVICES"
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
_OTHER_STARTERS = re.compile(r"\b(ssh|pdsh|clush|mpirun|mpiexec|ray start)\b")
_KINDS = ("use_deepspeed", "multi_gpu", "use_fsdp", "cpu", "tpu")
"""Options of ``accelerate launch`` of which it accepts one (``_validate_launch_command``)."""


class Conflict(NamedTuple):
    """One contradiction; ``word`` is the text of the script at which it is shown."""

    code: str
    effect: Effect
    message: str
    help: str
    word: str = ""


def conflicts(
    script: Script, launcher: Launcher, document: Document, text: str, name: str
) -> Iterator[Diagnostic]:
    """Yield a finding for each contradiction about the training command of a script."""
    launch = _Launch(script, launcher, document, text)
    lines, file = LineIndex(text), None if document.name == name else name
    for found in launch.conflicts():
        place = _place(found.word, script, lines, text)
        yield findings.launch_conflict(
            found.code, found.effect, found.message, found.help, place, file
        )


def _place(word: str, script: Script, lines: LineIndex, text: str) -> Range:
    """Return the place of a word: an option in the command, another word anywhere."""
    command = sum(len(line) + 1 for line in text.split("\n")[: max(script.line - 1, 0)])
    spelled = re.escape(word).replace("_", "[-_]")
    start = command if word.startswith("--") else 0
    found = re.compile(rf"(?<![\w-]){spelled}(?![\w-])").search(text, start) if word else None
    if found is not None:
        return lines.range(*found.span())
    line = text[command:].partition("\n")[0]
    return lines.range(command + len(line) - len(line.lstrip()), command + len(line.rstrip()))


class _Launch:
    """A training command with everything that decides about its ranks and its config."""

    def __init__(self, script: Script, launcher: Launcher, document: Document, text: str) -> None:
        self.script = script
        self.launcher = launcher
        self.document = document
        self.options = script.launch_options
        self.settings = launcher.settings
        self.visible = started_ranks.devices(script.environment)
        self.is_accelerate = script.launcher == "accelerate"
        self.has_others = _OTHER_STARTERS.search(text) is not None or text.count("srun ") > 1
        """Whether the script starts commands on other hosts in a way of its own."""
        self.is_read = not (document.is_broken or document.is_unreadable)
        """Whether the command uses a ds_config that was read."""

    def conflicts(self) -> Iterator[Conflict]:
        yield from self._visible_devices()
        yield from self._nodes()
        yield from self._ranks()
        yield from self._kinds()
        yield from self._two_configs()
        yield from self._lost_options()
        yield from self._repeated()
        yield from self._of_deepspeed()
        yield from self._of_llamafactory()

    def _setting(self, name: str) -> Any:
        """Return an option of ``accelerate launch``, or else what its YAML sets."""
        return self.options.get(name, self.settings.get(name))

    # --- devices

    def _visible_devices(self) -> Iterator[Conflict]:
        if not self.visible:
            return
        shown = ",".join(map(str, self.visible))
        word = f"{DEVICES}={shown}"
        listed = self._setting("gpu_ids") if self.is_accelerate else None
        listed = str(listed).replace(" ", "") if type(listed) in (str, int) else "all"
        if listed not in ("all", shown):
            yield Conflict(
                "DSC710",
                Effect.ALTERED,
                f"{DEVICES} is {shown}, but gpu_ids is {listed}: accelerate uses gpu_ids",
                "write gpu_ids: all",
                word,
            )
        if self.script.launcher != "deepspeed":
            return
        each, included = count(self.options, "num_gpus"), self.options.get("include")
        if each is not None and tuple(range(each)) != self.visible[:each]:
            yield Conflict(
                "DSC710",
                Effect.ALTERED,
                f"{DEVICES} is {shown}, but --num_gpus is {each}: deepspeed ignores the variable "
                f"and uses the first {each} GPUs of the machine",
                f"write --include localhost:{shown} instead of --num_gpus, without the variable",
                word,
            )
        elif isinstance(included, str) and not self._is_visible(included):
            yield Conflict(
                "DSC710",
                Effect.ALTERED,
                f"{DEVICES} is {shown}, but --include is {included}: deepspeed ignores the "
                "variable",
                "delete one of them",
                word,
            )

    def _is_visible(self, included: str) -> bool:
        """Return whether ``localhost:0,1`` names visible GPUs only."""
        slots = started_ranks.devices({DEVICES: included.partition(":")[2]})
        return set(slots) <= set(self.visible)

    # --- nodes

    def _nodes(self) -> Iterator[Conflict]:
        reserved = count(self.script.batch, "nodes") or 1
        started = self._started_nodes()
        if reserved < 2 or started is None or started >= reserved or self.has_others:
            return
        command = self.script.launcher
        option = {"torchrun": "--nnodes", "accelerate": "num_machines"}.get(command, "")
        states = f"{option} is {started}" if option else "it has no hostfile"
        if self.script.is_submitted and started == 1:
            yield Conflict(
                "DSC711",
                Effect.ALTERED,
                f"the job reserves {reserved} nodes, but {command} starts a run of its own on "
                f"each: {states}",
                _join(command, reserved),
            )
        else:
            yield Conflict(
                "DSC711",
                Effect.COSTLY,
                f"the job reserves {reserved} nodes, but {command} uses {started} ({states}): the "
                "others are idle",
                _join(command, reserved),
            )

    def _started_nodes(self) -> int | None:
        """Return the nodes that the launcher joins; None if they are not known."""
        if self.is_accelerate:
            return self._machines()
        if self.script.launcher not in _LAUNCHERS or self.options.get("hostfile"):
            return None
        counted: Mapping[str, int] = self.script.content.get(LAUNCH) or {}
        return counted.get("nodes")

    def _machines(self) -> int | None:
        """Return accelerate's machines; None if an option or an unread YAML decides them."""
        if "num_machines" not in self.options and not self.settings:
            return None
        machines = self._setting("num_machines")
        is_default = machines is None and "num_machines" not in self.options
        return 1 if is_default else count({"n": machines}, "n")

    # --- ranks

    def _ranks(self) -> Iterator[Conflict]:
        each, source = self._each()
        tasks = self._tasks()
        is_launched = self.script.launcher in _LAUNCHERS
        if self.script.is_submitted and is_launched and tasks > 1 and (each or 0) > 1:
            yield Conflict(
                "DSC712",
                Effect.REFUSED,
                f"{tasks} tasks per node each start {self.script.launcher} with {each} processes: "
                f"{tasks * (each or 1)} processes per node on one port",
                "write --ntasks-per-node=1",
                "ntasks-per-node",
            )
            return
        devices, of_devices = self._devices()
        if each is not None and devices and each > devices:
            yield Conflict(
                "DSC712",
                Effect.REFUSED,
                f"{source} starts {each} ranks per node, but {of_devices} {devices} GPUs: the "
                'others stop with "invalid device ordinal"',
                f"start {devices} ranks per node",
            )
        yield from self._of_swift()

    def _tasks(self) -> int:
        """Return the tasks per node; ``srun -n`` counts all tasks."""
        batch = self.script.batch
        total, nodes = count(batch, "srun-ntasks"), count(batch, "nodes") or 1
        return -(-total // nodes) if total else count(batch, "ntasks-per-node") or 1

    def _each(self) -> tuple[int | None, str]:
        """Return the ranks per node, and what states them."""
        if self.is_accelerate:
            total, nodes = self._setting("num_processes"), self._machines()
            if type(total) is not int or nodes is None:
                return None, ""
            name = "--num_processes" if "num_processes" in self.options else "num_processes"
            return total // nodes, f"{name} {total}"
        if self.script.launcher in _LAUNCHERS:
            for option in started_ranks.EACH:
                if (each := count(self.options, option)) is not None:
                    return each, f"--{option} {each}"
            return None, ""
        each = count(self.script.environment, "NPROC_PER_NODE")
        return each, f"NPROC_PER_NODE={each}"

    def _devices(self) -> tuple[int, str]:
        """Return the GPUs of a node, and what limits them."""
        listed = self._setting("gpu_ids") if self.is_accelerate else None
        if isinstance(listed, str) and re.fullmatch(r"\d+(,\d+)*", listed):
            return listed.count(",") + 1, f"gpu_ids {listed} lists"
        if self.visible and self.script.launcher != "deepspeed":
            return len(self.visible), f"{DEVICES} lists"
        return count(self.script.batch, "gpus-per-node") or 0, "the job reserves"

    def _of_swift(self) -> Iterator[Conflict]:
        uses_deepspeed = self.script.options.get("deepspeed") is not None
        if self.script.launcher != "swift" or not uses_deepspeed or len(self.visible) < 2:
            return
        if self.script.environment.get("NPROC_PER_NODE", "") == "":
            number = len(self.visible)
            yield Conflict(
                "DSC712",
                Effect.REFUSED,
                f"{DEVICES} lists {number} GPUs, but NPROC_PER_NODE is not set: ms-swift starts 1 "
                "process for them and raises a ValueError with --deepspeed",
                f"set NPROC_PER_NODE={number}",
                DEVICES,
            )

    # --- what is launched

    def _kinds(self) -> Iterator[Conflict]:
        if not self.is_accelerate:
            return
        given = [name for name in _KINDS if self.options.get(name) is True]
        if len(given) > 1:
            listed = " and ".join(f"--{name}" for name in given)
            yield Conflict(
                "DSC713",
                Effect.REFUSED,
                f"accelerate launch accepts one of {listed}: it raises a ValueError",
                "keep one of them",
                f"--{given[1]}",
            )
        kind = self.settings.get("distributed_type")
        named = self._named_by_program()
        if kind == "FSDP" and named is not None:
            yield Conflict(
                "DSC713",
                Effect.ALTERED,
                f"{self.launcher.file} selects FSDP, but the command passes {named} to the "
                "program: the run uses DeepSpeed, and fsdp_config has no effect",
                "use a YAML with distributed_type: MULTI_GPU, or delete the option",
                named,
            )

    def _named_by_program(self) -> str | None:
        """Return the config that is passed to the program, not to the launcher."""
        own = self.script.options
        return next((own[name] for name in CONFIG_OPTIONS if isinstance(own.get(name), str)), None)

    def _two_configs(self) -> Iterator[Conflict]:
        named = self._named_by_program()
        block = plugin_settings.block_of(self.settings)
        other = self.options.get("deepspeed_config_file", block.get("deepspeed_config_file"))
        if named is None or not isinstance(other, str) or not self.is_accelerate:
            return
        if named.removeprefix("./") != other.removeprefix("./"):
            holder = (
                "the command" if "deepspeed_config_file" in self.options else self.launcher.file
            )
            yield Conflict(
                "DSC714",
                Effect.INERT,
                f"{holder} names {other}, but the program is passed {named}: it uses {named}, and "
                f"{other} is not read",
                "name the same file in both, or delete one",
                named,
            )

    def _lost_options(self) -> Iterator[Conflict]:
        """Yield options of ``accelerate launch`` that a config file decides."""
        config: object = self.document.value
        is_used = plugin_settings.uses_deepspeed(self.settings, self.options)
        if not self.is_accelerate or not is_used or not self.is_read:
            return
        if self.document.is_generated:
            return
        if not isinstance(config, Mapping):
            return
        for option, path in plugin_settings.PATH_OF_SETTING.items():
            given = self.options.get(option)
            written = value_at(config, path)
            is_default = written is ABSENT and given in (False, "false", "none")
            if given in (None, written) or written == "auto" or is_default:
                continue
            has = "does not set" if written is ABSENT else f"sets {written!r} for"
            yield Conflict(
                "DSC714",
                Effect.INERT,
                f"--{option} is {given}, but {self.document.name} {has} {path}: accelerate uses "
                "the file",
                f'write "auto" for {path} in the file, or delete the option',
                f"--{option}",
            )

    def _repeated(self) -> Iterator[Conflict]:
        for name, (first, last) in self.script.repeated.items():
            yield Conflict(
                "DSC715",
                Effect.INERT,
                f"--{name} is given twice, {first} and {last}: the last one is used",
                "delete one of them",
                f"--{name}",
            )

    # --- what the launcher or the program rejects

    def _of_deepspeed(self) -> Iterator[Conflict]:
        named = [name for name in ("include", "exclude") if self.options.get(name)]
        counted = [name for name in started_ranks.OF_DEEPSPEED if count(self.options, name)]
        given = [*named, *counted]
        if self.script.launcher == "deepspeed" and named and len(given) > 1:
            yield Conflict(
                "DSC717",
                Effect.REFUSED,
                f"deepspeed accepts --{given[0]} or --{given[1]}, not both: it raises a ValueError",
                "keep one of them",
                f"--{given[1]}",
            )

    def _of_llamafactory(self) -> Iterator[Conflict]:
        script = self.script
        if script.launcher not in started_ranks.OF_LLAMAFACTORY or script.arguments_file is None:
            return
        option = next(iter(script.flags), None)
        if option is not None and script.first == script.arguments_file:
            name, _, value = option.removeprefix("--").partition("=")
            yield Conflict(
                "DSC717",
                Effect.REFUSED,
                f"{option} is given after {script.first}: LLaMA-Factory then reads only name=value "
                "and raises a ValueError",
                f"write {name}={value or '...'}",
                option,
            )
        starts_one = len(self.visible) == 1 and self.is_read
        variables = ("FORCE_TORCHRUN", "USE_RAY", "USE_MCA")
        if starts_one and not any(script.environment.get(name, "") != "" for name in variables):
            yield Conflict(
                "DSC717",
                Effect.REFUSED,
                f"{DEVICES} lists one GPU, so LLaMA-Factory does not start torchrun, and rejects "
                "deepspeed with a ValueError",
                "set FORCE_TORCHRUN=1",
                DEVICES,
            )


def _join(command: str, nodes: int) -> str:
    if command == "torchrun":
        return (
            f"add --nnodes {nodes} --rdzv_backend c10d --rdzv_endpoint HOST:PORT, with the first "
            "node as HOST"
        )
    if command == "accelerate":
        return (
            f"set num_machines to {nodes}, num_processes to the total, and main_process_ip to the "
            "first node"
        )
    return "pass --hostfile with every node"
