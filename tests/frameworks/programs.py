"""Programs of others, launched on two ranks as their users do, on dsengine and on DeepSpeed.

python -m frameworks.programs install           install the programs into runs/programs
python -m frameworks.programs run [NAME]...     run both packages; resumes an interrupted run
python -m frameworks.programs record            store the comparison of these runs for the page
python -m frameworks.programs page              write docs/internals/programs-table.md
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import Any

from frameworks.running import ROOT, SCRIPTS, environment
from frameworks.tiny import LLAMA, save_model, save_tokenizer

RUNS = Path(os.environ.get("PROGRAMS_RUNS", ROOT / "runs" / "programs"))
INSTALLED = ROOT / "runs" / "programs" / "site-packages"
RECORD = ROOT / "tests" / "oracle" / "programs_table.json"
PAGE = ROOT / "docs" / "internals" / "programs-table.md"
PACKAGES = ("deepspeed", "dsengine")
REQUIREMENTS = (
    *("trl", "peft", "datasets", "sentence-transformers", "lightning", "lightning-utilities"),
    *("pytorch-lightning", "torchmetrics", "pyarrow", "dill", "xxhash", "multiprocess", "pandas"),
    *("python-dateutil", "six", "pytz", "tzdata", "scikit-learn", "scipy", "joblib"),
    *("threadpoolctl", "jinja2", "aiohttp", "cloudpickle", "narwhals"),
)
"""Without their dependencies, which would replace torch and transformers."""
RANKS = 2
SECONDS = 240
CLOSE = {"fp32": 1e-5, "bf16": 5e-3}
TIMED = ("runtime", "per_second", "step_time")
"""Parts of the names of logged numbers that depend on the clock."""
WORDS = ("a small model", "many large steps", "the last word", "one more try", "two cards", "rain")
DATA: Mapping[str, Callable[[str], Mapping[str, Any]]] = {
    "text": lambda words: {"text": f"{words}, {words}."},
    "preference": lambda words: {"prompt": words, "chosen": " yes", "rejected": " never"},
    "ranked": lambda words: {"chosen": f"{words} yes", "rejected": f"{words} never"},
    "labelled": lambda words: {"prompt": words, "completion": " yes", "label": len(words) % 2 == 0},
    "prompts": lambda words: {"prompt": words},
    "pairs": lambda words: {"anchor": words, "positive": f"{words} again"},
}
TRAINER = {
    "max_steps": "4",
    "per_device_train_batch_size": "2",
    "learning_rate": "1e-3",
    "logging_steps": "1",
    "save_steps": "4",
    "gradient_checkpointing": "false",
    "report_to": "none",
    "disable_tqdm": "true",
    "dataloader_num_workers": "0",
}


@dataclass(frozen=True, slots=True)
class Program:
    """One command line, run with both packages on two ranks."""

    label: str
    """What the table calls it."""
    target: str
    """A module, or a script in tests/frameworks/scripts."""
    stage: int
    data: str
    precision: str = "fp32"
    model: str = "causal"
    flags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        words = f"{self.label} {self.stage} {self.precision}".lower()
        return "-".join(words.replace("(", "").replace(")", "").split())

    def command(self, package: str) -> list[str]:
        """Return the command line, and write the files that it names."""
        out = RUNS / package / self.name
        config = out.with_suffix(".ds.json")
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(json.dumps(_config(self.stage)))
        options = TRAINER | {
            "model_name_or_path": str(_model(self.model)),
            "dataset_name": str(_dataset(self.data)),
            "output_dir": str(out),
            "deepspeed": str(config),
            "bf16": str(self.precision == "bf16").lower(),
        }
        script = SCRIPTS / f"{self.target}.py"
        program = str(script) if script.exists() else self.target
        arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
        start = [*torchrun, "-m", "frameworks.on_gloo", package, program]
        replaced = ["-m", "dsengine"] if package == "dsengine" else []
        return [sys.executable, *replaced, *start, *arguments, *self.flags]


def _config(stage: int) -> dict[str, Any]:
    auto = "auto"
    return {
        "train_batch_size": auto,
        "train_micro_batch_size_per_gpu": auto,
        "gradient_accumulation_steps": auto,
        "gradient_clipping": auto,
        "bf16": {"enabled": auto},
        "zero_optimization": {
            "stage": stage,
            "stage3_gather_16bit_weights_on_model_save": True,
            "stage3_param_persistence_threshold": 0,
        },
    }


def _model(kind: str) -> Path:
    folder = RUNS / "models" / kind
    if not (folder / "tokenizer_config.json").exists():
        cls = {"causal": "LlamaForCausalLM", "reward": "LlamaForSequenceClassification"}[kind]
        save_tokenizer(save_model(folder, cls, **LLAMA, **_head(kind)))
    return folder


def _head(kind: str) -> dict[str, int]:
    return {"num_labels": 1} if kind == "reward" else {}


def _dataset(kind: str) -> Path:
    folder = RUNS / "data" / kind
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(DATA[kind](words)) for words in WORDS]
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n")
    return folder


LORA = ("--use_peft", "--lora_r", "4", "--lora_target_modules", "q_proj", "v_proj")
GENERATES = (
    *("--num_generations", "2", "--max_completion_length", "8", "--beta", "1.0"),
    *("--reward_funcs", "frameworks.rewards.length_of"),
)
SHORT = ("--max_length", "24")
trl = partial(Program, flags=SHORT)
PROGRAMS = (
    *(trl("TRL SFT", "trl.scripts.sft", stage, "text") for stage in (2, 3)),
    trl("TRL SFT", "trl.scripts.sft", 3, "text", "bf16"),
    *(
        Program("TRL SFT (LoRA)", "trl.scripts.sft", stage, "text", flags=(*SHORT, *LORA))
        for stage in (2, 3)
    ),
    *(trl("TRL DPO", "trl.scripts.dpo", stage, "preference") for stage in (2, 3)),
    *(trl("TRL KTO", "trl.scripts.kto", stage, "labelled") for stage in (2, 3)),
    *(trl("TRL reward", "trl.scripts.reward", s, "ranked", model="reward") for s in (2, 3)),
    *(
        Program(f"TRL {kind.upper()}", f"trl.scripts.{kind}", stage, "prompts", flags=GENERATES)
        for kind in ("grpo", "rloo")
        for stage in (2, 3)
    ),
    *(Program("sentence-transformers", "sentences", stage, "pairs") for stage in (2, 3)),
)


def install() -> None:
    """Install the programs into a folder of their own, unless that was done."""
    if not (INSTALLED / "trl").exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--target", str(INSTALLED), *REQUIREMENTS], check=True)


def run(programs: Iterable[Program]) -> None:
    """Run each program with both packages, except those that already have a result."""
    paths = os.pathsep.join([str(INSTALLED), environment(RANKS)["PYTHONPATH"]])
    offline = {"HF_HUB_OFFLINE": "1", "ACCELERATE_USE_DEEPSPEED": "true", "PYTHONPATH": paths}
    for program in programs:
        for package in PACKAGES:
            out = RUNS / package / program.name
            if not (out / "result.json").exists():
                shutil.rmtree(out, ignore_errors=True)
                _run(program.command(package), environment(RANKS) | offline, out)


def _run(command: list[str], variables: dict[str, str], out: Path) -> None:
    """Write the output to ``out.log``, and the logged numbers to ``out/result.json``."""
    with out.with_suffix(".log").open("w") as log:
        try:
            done = subprocess.run(
                command, env=variables, stdout=log, stderr=subprocess.STDOUT, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            log.write(f"\nstopped after {SECONDS} seconds\n")
            return
    states = list(out.rglob("trainer_state.json"))
    if done.returncode == 0 and states:
        history = json.loads(states[-1].read_text())["log_history"]
        (out / "result.json").write_text(json.dumps(_numbers(history)))


def _numbers(history: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Return the logged numbers by name, in the order of the steps."""
    names = {name for step in history for name in step if not any(part in name for part in TIMED)}
    return {name: [step[name] for step in history if name in step] for name in sorted(names)}


def compared(program: Program) -> dict[str, Any]:
    """Return the largest relative difference of each logged number; "failed" names a package."""
    results: list[dict[str, list[float]]] = []
    for package in PACKAGES:
        out = RUNS / package / program.name
        if not (out / "result.json").exists():
            return {"failed": f"{package}: {_first_error(out.with_suffix('.log'))}"}
        results.append(json.loads((out / "result.json").read_text()))
    theirs, ours = results
    return {name: _difference(ours.get(name, []), values) for name, values in theirs.items()}


def _difference(ours: list[float], theirs: list[float]) -> float:
    if len(ours) != len(theirs):
        return float("inf")
    scale = max(map(abs, theirs)) or 1.0
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) / scale


def differing(program: Program, found: Mapping[str, Any]) -> list[str]:
    """Return the names of numbers that differ, or "failed"."""
    close = CLOSE[program.precision]
    return [name for name, apart in found.items() if isinstance(apart, str) or not apart <= close]


def _first_error(log: Path) -> str:
    text = log.read_text(errors="replace") if log.exists() else ""
    found = re.search(
        r"^(?:\[rank\d+\]: )?\s*(?:\w+\.)*(\w*(?:Error|Exception): .*)$", text, re.MULTILINE
    )
    return (found.group(1) if found else "not run")[:120]


def recorded() -> dict[str, dict[str, Any]]:
    return json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}


def page(rows: Mapping[str, Mapping[str, Any]]) -> str:
    ran = [program for program in PROGRAMS if program.name in rows]
    agree = sum(not differing(program, rows[program.name]) for program in ran)
    lines = [
        "# Programs of others on dsengine and on DeepSpeed",
        "",
        *wrap(
            "Each row is one program as its package contains it, started by torchrun on two CPU "
            "ranks with a tiny model and a local dataset: once on DeepSpeed 0.19.8, and once with "
            "`dsengine torchrun ...`. The numbers are the largest differences of what the program "
            "logs in four steps, relative to the largest value; they must be below 1e-5 in fp32 "
            "and 5e-3 in bf16. accelerate runs with gloo, because it has no backend for "
            "DeepSpeed on several CPU ranks. sentence-transformers saves on rank 0 alone, which "
            "dsengine refuses at stage 3; DeepSpeed writes a file of empty tensors. Generated in "
            "tests/ by `python -m frameworks.programs`.",
            100,
        ),
        "",
        f"**{agree} of {len(ran)}** agree.",
        "",
        "| program | stage | precision | loss | norm | other numbers | |",
        "|---|---|---|---|---|---|---|",
        *(_row(program, rows[program.name]) for program in ran),
    ]
    return "\n".join(lines) + "\n"


def _row(program: Program, found: Mapping[str, Any]) -> str:
    others = [
        value
        for name, value in found.items()
        if name not in ("loss", "grad_norm") and not isinstance(value, str)
    ]
    numbers = (found.get("loss"), found.get("grad_norm"), max(others, default=None))
    shown = ["" if value is None else f"{value:.0e}" if value else "0" for value in numbers]
    verdict = found.get("failed") or ", ".join(differing(program, found)) or "agrees"
    cells = (program.label, program.stage, program.precision, *shown, verdict)
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["install"]:
            install()
        case ["run", *names]:
            install()
            run([program for program in PROGRAMS if not names or program.name in names])
        case ["record"]:
            ran = [p for p in PROGRAMS if (RUNS / "dsengine" / f"{p.name}.log").exists()]
            rows = recorded() | {program.name: compared(program) for program in ran}
            RECORD.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
        case ["page"]:
            PAGE.write_text(page(recorded()), "utf-8")
        case _:
            raise SystemExit(__doc__)
