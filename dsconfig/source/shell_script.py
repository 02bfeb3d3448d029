"""The training command of a shell script or Slurm job: its options and its number of ranks.

Nothing is executed: ``source.shell`` follows the script. An option whose value is only known at run
time (``$1``, ``$(...)``) is left out.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from dsconfig.report import Range
from dsconfig.source import plugin_settings
from dsconfig.source.document import LAUNCH
from dsconfig.source.pointer import MAX_DEPTH, is_block
from dsconfig.source.positions import LineIndex, Offsets
from dsconfig.source.shell import Command, Word, WrittenFile, commands_of

CONFIG_OPTIONS = ("deepspeed", "deepspeed_config", "ds_config", "deepspeed_config_file")
_LAUNCHERS = {"deepspeed": "deepspeed", "torchrun": "torchrun", "accelerate": "accelerate"}
_TRAINERS: Mapping[str, tuple[str, ...]] = {
    "llamafactory-cli": ("train",),
    "lmf": ("train",),
    "axolotl": ("train",),
    "swift": ("sft", "pt", "rlhf"),
    "trl": ("sft", "dpo", "kto", "grpo", "rloo", "reward"),
    "xtuner": ("train",),
}
"""Programs that start their own ranks, and their subcommands that train."""
_ALL_DEVICES = frozenset(("llamafactory-cli", "lmf", "axolotl"))
"""Those that use every visible GPU if no count is given; the others then use one process."""
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
"""Launchers started with ``python -m``."""
_SLURM = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "gpus-per-node": ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"),
    "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
}
_VARIABLE = re.compile(r"\$\{?[A-Za-z_]\w*|\$\(")
_SBATCH = re.compile(r"^#SBATCH\s+(-.*)", re.MULTILINE)
_SUBMITTED = re.compile(r"(?:--([a-z-]+)|-([NnG]|np))(?:[= ]\s*|(?=\d))(\S+)")
"""An option of ``#SBATCH``, ``srun`` or ``mpirun`` and its value."""


@dataclass(frozen=True, slots=True)
class Script:
    """The training command of a script.

    ``content``: its options by name, nested where the name of ``a.b=value`` has dots, and
    ``LAUNCH``. ``places``: offsets of each option and its value, by pointer of ``content``;
    ``lines``: the line, and the file if it is another one.
    """

    content: Mapping[str, Any]
    places: Mapping[str, Offsets]
    config: str | None = None
    """Path of the ds_config."""
    launch_config: str | None = None
    """Path of accelerate's YAML."""
    arguments_file: str | None = None
    """Path of the YAML or JSON with the other arguments."""
    launch_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of ``accelerate launch``; ``launch_places``: where they are."""
    launch_places: Mapping[str, Offsets] = field(default_factory=dict[str, Offsets])
    files: Mapping[str, WrittenFile] = field(default_factory=dict[str, WrittenFile])
    has_launcher: bool = True
    launcher: str = ""
    program: tuple[str, ...] = ()
    """The script, the module after ``-m``, or the program and its subcommand."""
    environment: Mapping[str, str | None] = field(default_factory=dict[str, "str | None"])
    """Variables that the script sets for the command; None: not known."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options by name as written, not nested; None: not known."""
    lines: Mapping[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    """Line of each option, and the script if it is another one."""
    first: str | None = None
    """The first argument, if it is no option."""
    line: int = 0
    folder: str = ""

    @property
    def rank(self) -> int:
        """Order of preference among the commands of a script."""
        named = self.config or self.launch_config or (self.has_launcher and self.arguments_file)
        named = named or plugin_settings.launch_of_options(self.launch_options)
        return 0 if named else 1 if self.has_launcher else 2


Read = Callable[[str], str | None]
"""Returns the text of a file that a script names, or None."""


def _nothing(name: str) -> str | None:
    del name
    return None


def training_command(
    text: str,
    name: str = "",
    read: Read = _nothing,
    is_known: Callable[[Script], bool] = lambda _: True,
) -> Script | None:
    """Return the first command that passes a ds_config to a program, else the first one that a
    launcher starts; None without either. ``is_known``: whether a command takes precedence."""
    batch = _batch_options(text)
    variables = {
        name: batch[option] for option in _SLURM if option in batch for name in _SLURM[option]
    }
    for is_called in (False, True):  # a script may do nothing without arguments
        followed = commands_of(text, name, read, variables, is_called=is_called)
        scripts = (_script(command, batch, followed.files) for command in followed.commands)
        found = [script for script in scripts if script is not None]
        if found or "$1" not in text:
            break
    return min(found, key=lambda script: (script.rank, not is_known(script)), default=None)


def option_range(text: str, option: str) -> Range | None:
    """Return the position of an option of the training command, or None without it."""
    script = training_command(text)
    place = None if script is None else script.places.get("/" + option.replace(".", "/"))
    return None if place is None else LineIndex(text).range(place[0], place[1])


def _batch_options(text: str) -> dict[str, str]:
    """Return the options of ``#SBATCH`` lines that count nodes, GPUs and tasks."""
    found: dict[str, str] = {}
    for line in _SBATCH.findall(text):
        found |= _counts(line)
    return found


def _counts(line: str) -> dict[str, str]:
    """Return the options of a line that are counts; ``gpu:a100:4`` counts 4."""
    short = {"N": "nodes", "gres": "gpus-per-node", "n": "ntasks", "np": "ntasks", "G": "gpus"}
    found: dict[str, str] = {}
    for long_name, letter, value in _SUBMITTED.findall(line):
        name, number = long_name or letter, value.rpartition(":")[2]
        if number.isdigit():
            found[str(short.get(name, name))] = number
    return found


# --- commands


def _script(
    command: Command, batch: Mapping[str, str], files: Mapping[str, WrittenFile]
) -> Script | None:
    """Return the command of a launcher, of a training program, or of Python that runs a script or
    module; else None."""
    words = _without_submitter(list(command.words))
    if words and words[0].text in ("echo", "printf"):
        return None
    first = next((at for at, word in enumerate(words) if _is_launcher(word.text)), None)
    if first is None:
        return None
    if first and _base(words[0].text) in ("srun", "mpirun", "mpiexec"):
        batch = {**batch, **_counts(" ".join(word.text for word in words[:first]))}
    values = {name: v.text if v.is_known else None for name, v in command.environment.items()}
    names = [word.text for word in words]
    base = _base(names[first])
    launcher = _LAUNCHERS.get(base, "python")
    at = first + 1
    if base in _TRAINERS:
        is_training = any(name in _TRAINERS[base] for name in names[at : at + 1])
        program, launch_places = at if is_training else None, dict[str, Offsets]()
        launch, ranks = dict[str, Any](), _own_ranks(base, values)
        launcher = base
    else:
        if launcher == "python" and _module_of(names, at) in _MODULES:
            launcher, at = _MODULES[_module_of(names, at)], names.index("-m", at) + 2
        program = next((i for i in range(at, len(names)) if _is_program(names, i)), None)
        launch, launch_places = _options(words[at:program])
        ranks = _ranks(launcher, launch, batch)
    if program is None:
        return None
    arguments = words[program + 1 :]
    own, places = _options(arguments)
    file = _arguments_file(arguments, own)
    if file is None and base in _TRAINERS and arguments and not arguments[0].is_known:
        file = arguments[0].text
    if launcher == "python" and not own and file is None:
        return None
    named = next((own[name] for name in CONFIG_OPTIONS if isinstance(own.get(name), str)), None)
    if launcher == "accelerate":
        named = named or launch.get("deepspeed_config_file")
    content = _nested({name: value for name, value in own.items() if value is not None})
    content.pop("deepspeed", None)
    if named is not None:
        key = "deepspeed_config" if "deepspeed_config" in own else "deepspeed"
        content[key] = named
    is_accelerate = launcher == "accelerate"
    is_local = all(not word.file for word in words)
    return Script(
        {**content, LAUNCH: ranks},
        places if is_local else {},
        named,
        launch_config=launch.get("config_file") if is_accelerate else None,
        arguments_file=file,
        launch_options=launch if is_accelerate or launcher == "deepspeed" else {},
        launch_places=launch_places if is_local else {},
        files=files,
        has_launcher=launcher != "python",
        launcher=launcher,
        program=(base, names[program]) if base in _TRAINERS else (names[program],),
        options=own,
        first=next((w.text for w in arguments[:1] if not w.text.startswith("-")), None),
        lines=_lines(arguments),
        line=words[first].line,
        environment=values,
        folder=command.folder,
    )


def _without_submitter(words: list[Word]) -> list[Word]:
    """Return the words after ``--``, or the last quoted ``&&`` after it, if they start a launcher:
    those before it submit a job. ``uv run`` of a script is Python."""
    ends = [at for at, word in enumerate(words) if word.text == "--"]
    ends += [at for at, word in enumerate(words) if ends and at > ends[0] and word.text == "&&"]
    for at in (*reversed(ends), -1):
        found = words[at + 1 : at + 4]
        is_script = len(found) > 2 and found[2].text.endswith(".py")
        if is_script and _base(found[0].text) == "uv" and found[1].text == "run":
            return [found[0]._replace(text="python"), *words[at + 3 :]]
        if at >= 0 and any(_is_launcher(each.text) for each in found):
            return words[at + 1 :]
    return words


def _arguments_file(words: list[Word], options: Mapping[str, Any]) -> str | None:
    """Return the YAML or JSON with arguments: the first word, or ``--config``; as it is written if
    only the run knows it."""
    is_first = bool(words) and not words[0].text.startswith("-")
    named = words[0].text if is_first else options.get("config", "")
    if named is None:
        return "$config"
    is_file = isinstance(named, str) and named.endswith((".yaml", ".yml", ".json"))
    return named if is_file else None


def _own_ranks(program: str, values: Mapping[str, str | None]) -> dict[str, int]:
    """Return ``gpus`` and ``nodes`` of a program that starts its own ranks."""
    if not _are_known(values, "NNODES", "NPROC_PER_NODE"):
        return {}
    nodes, each = _count(values, "NNODES"), _count(values, "NPROC_PER_NODE")
    devices = values.get("CUDA_VISIBLE_DEVICES") or ""
    if each is None and program in _ALL_DEVICES and re.fullmatch(r"[\d,]*\d", devices):
        each = len(devices.split(","))
    found = {"gpus": each * (nodes or 1)} if each else {}
    return found | ({"nodes": nodes} if nodes else {})


def _base(word: str) -> str:
    return PurePosixPath(word).name


def _is_launcher(word: str) -> bool:
    return (
        _base(word) in _LAUNCHERS.keys() | _TRAINERS.keys()
        or re.fullmatch(r"python[\d.]*", _base(word)) is not None
    )


def _module_of(names: list[str], at: int) -> str:
    rest = names[at:]
    return rest[rest.index("-m") + 1] if "-m" in rest[:-1] else ""


def _is_program(names: list[str], at: int) -> bool:
    """Return whether the word is a script, or a module after its flag."""
    return names[at].endswith(".py") or names[at - 1] in ("-m", "--module")


def _options(words: list[Word]) -> tuple[dict[str, Any], dict[str, Offsets]]:
    """Return ``--name value``, ``--name=value``, ``--name`` (true) and ``name=value``, and where
    they are; None for a value that is not known."""
    found: dict[str, Any] = {}
    places: dict[str, Offsets] = {}
    name, key = "", words[0] if words else None
    for word in words:
        is_option = word.text.startswith("--")
        written, sign, value = word.text.lstrip("-").partition("=")
        if is_option or (sign and re.fullmatch(r"\+*[A-Za-z_][\w.]*", written)):
            name, key = written.lstrip("+").replace("-", "_"), word
            found[name] = value_of(value) if sign else True
            if not _is_known(word):
                found[name] = None
        elif word.text.startswith("-") and not re.match(r"-[\d.]", word.text):
            name = ""
            continue
        elif name and key is not None:
            more = value_of(word.text) if _is_known(word) else None
            before = found[name]
            found[name] = more if before is True else before
        if name and key is not None:
            place = (key.start, key.end, word.start, word.end)
            places["/" + name.replace(".", "/")] = place
    return found, places


def _is_known(word: Word) -> bool:
    """Return whether no run decides a word; text of a here-document may contain a variable."""
    return word.is_known and _VARIABLE.search(word.text) is None


def _lines(words: list[Word]) -> dict[str, tuple[int, str]]:
    """Return the line and the script of each option."""
    found: dict[str, tuple[int, str]] = {}
    for word in words:
        written, sign, _ = word.text.lstrip("-").partition("=")
        if word.text.startswith("--") or sign:
            name = written.lstrip("+").replace("-", "_")
            found[name] = (word.line, word.file)
    return found


def value_of(text: str) -> Any:
    """Return the JSON value of a word, as argparse and OmegaConf convert it."""
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text)
    return None if lowered in ("null", "none") else text


_INTEGER = re.compile(r"[-+]?\d{1,300}", re.ASCII)
_NUMBER = re.compile(r"[-+]?(?:\d{1,300}\.?\d*|\.\d+)(?:e[-+]?\d{1,2})?", re.ASCII | re.IGNORECASE)


def _nested(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options; those of ``a.b=value`` in blocks, as Hydra builds them."""
    content: dict[str, Any] = {}
    for name, value in options.items():
        *blocks, last = name.split(".", MAX_DEPTH // 2)
        place = content
        for block in blocks:
            inner = place.get(block)
            place[block] = inner = inner if is_block(inner) else {}
            place = inner
        place[last] = value
    return content


def _ranks(launcher: str, options: Mapping[str, Any], batch: Mapping[str, str]) -> dict[str, int]:
    """Return ``gpus`` and ``nodes`` as far as they are known."""
    if not _are_known(options, *_NODES, *_EACH):
        return {}
    nodes = _count(options, *_NODES) or _count(batch, "nodes")
    if launcher == "accelerate":
        gpus = _count(options, "num_processes")
        return {name: n for name, n in (("gpus", gpus), ("nodes", nodes)) if n}
    tasks = _count(batch, "ntasks")
    if launcher == "python" and tasks and "ntasks-per-node" not in batch:
        return {"gpus": tasks} | ({"nodes": nodes} if nodes else {})
    each = _count(options, *_EACH) or _included(options.get("include"))
    if each is None and launcher != "deepspeed":
        each = _count(batch, "gpus-per-node" if launcher == "torchrun" else "ntasks-per-node")
    if each is None:
        each = _count(batch, "gpus-per-node") if launcher == "deepspeed" else None
    found = {"gpus": each * (nodes or 1)} if each else {}
    return found | ({"nodes": nodes} if nodes else {})


_NODES, _EACH = ("num_nodes", "nnodes", "num_machines"), ("num_gpus", "nproc_per_node")


def _are_known(values: Mapping[str, Any], *names: str) -> bool:
    """Return whether none of these options has a value that only the run knows: a variable, or a
    range of nodes (``1:4``)."""
    found = [values[name] for name in names if name in values]
    return all(value is not None and ":" not in str(value) for value in found)


def _count(values: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = values.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        if isinstance(value, str) and value.isdigit():
            return int(value)
    return None


def _included(value: object) -> int | None:
    """Return the GPUs of ``localhost:0,1`` on one host."""
    slots = value.partition(":")[2] if isinstance(value, str) and "@" not in value else ""
    return len(slots.split(",")) if slots else None
