"""Framework runs that compare dsengine with DeepSpeed: one case each, and a table.

python -m frameworks.cases run [NAME]...    run both packages; resumes an interrupted run
python -m frameworks.cases record           store the comparison of these runs for the page
python -m frameworks.cases page             write docs/internals/frameworks-table.md

Results are in runs/frameworks. trl, peft and lightning may be on PYTHONPATH, in a folder called
site-packages (datasets pickles code outside of one by value). Cases of missing packages are
skipped.
"""

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from frameworks import comparison
from frameworks.comparison import PACKAGES, Records, Row, cells, difference, differing
from frameworks.running import ROOT, Job, run_jobs
from frameworks.tiny import save_model, save_tokenizer

RUNS = Path(os.environ.get("FRAMEWORKS_RUNS", ROOT / "runs" / "frameworks"))
RECORDS = Records(ROOT / "tests" / "oracle" / "frameworks_table.json")
PAGE = ROOT / "docs" / "internals" / "frameworks-table.md"
HEAD = (
    *("framework", "stage", "precision", "optimizer and schedule from", "", "ranks"),
    *("losses", "norms", "other numbers", "tokens", "files", ""),
)
NEEDS = {"TRL": ("trl", "datasets"), "PEFT": ("peft",), "Lightning": ("lightning",)}
AUTO = "auto"
BATCH = {
    "gradient_accumulation_steps": AUTO,
    "gradient_clipping": AUTO,
    "train_batch_size": AUTO,
    "train_micro_batch_size_per_gpu": AUTO,
    "steps_per_print": 2000,
}
PRECISIONS = {"bf16": {"enabled": AUTO}, "fp16": {"enabled": AUTO, "initial_scale_power": 8}}
ZERO = {
    "reduce_bucket_size": AUTO,
    "stage3_prefetch_bucket_size": AUTO,
    "stage3_param_persistence_threshold": AUTO,
    "stage3_gather_16bit_weights_on_model_save": True,
}
OPTIMIZER = {
    "type": "AdamW",
    "params": {"lr": AUTO, "betas": AUTO, "eps": AUTO, "weight_decay": AUTO, "torch_adam": True},
}
SCHEDULER = {
    "type": "WarmupLR",
    "params": {"warmup_min_lr": AUTO, "warmup_max_lr": AUTO, "warmup_num_steps": AUTO},
}
BY: dict[str, dict[str, Any]] = {
    "config": {"optimizer": OPTIMIZER, "scheduler": SCHEDULER},
    "script": {},
    "optimizer in config": {"optimizer": OPTIMIZER},
    "schedule in config": {"scheduler": SCHEDULER},
}
"""Source of optimizer and schedule."""
TRAINER = (
    "--per_device_train_batch_size=2",
    "--gradient_accumulation_steps=2",
    "--max_steps=6",
    "--save_steps=3",
    "--eval_strategy=steps",
    "--eval_steps=3",
    "--logging_steps=1",
    "--learning_rate=1e-3",
    "--warmup_steps=2",
    "--report_to=none",
    "--disable_tqdm=true",
    "--load_best_model_at_end=true",
    "--metric_for_best_model=eval_loss",
)


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One run of one framework, with both packages."""

    framework: str
    stage: int
    precision: str = "fp32"
    by: str = "config"
    feature: str = ""
    flags: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """In addition to the settings for the stage and ``by``."""
    zero: Mapping[str, Any] = field(default_factory=dict[str, Any])
    resumes_from: str = ""
    """The package whose checkpoint (of the case without a feature) dsengine loads, or "own"."""
    ranks: int = 1

    @property
    def name(self) -> str:
        return self._named(self.feature)

    def _named(self, feature: str) -> str:
        ranks = "" if self.ranks == 1 else f"{self.ranks} ranks"
        parts = (self.framework, self.stage, self.precision, self.by, feature, ranks)
        return "-".join(str(part) for part in parts if part != "").replace(" ", "_").lower()

    def is_possible(self) -> bool:
        """Whether the required packages are installed."""
        return all(importlib.util.find_spec(name) for name in NEEDS.get(self.framework, ()))

    def before(self, package: str) -> tuple[str, str] | None:
        """Return the name and package of the case whose checkpoint is loaded."""
        if not self.resumes_from:
            return None
        own = package != "dsengine" or self.resumes_from == "own"
        return self._named(""), package if own else self.resumes_from

    def job(self, package: str) -> Job:
        """Return the job; its output folder is beside its result."""
        before = self.before(package)
        loaded = before and RUNS / before[1] / f"{before[0]}.out"
        job = _JOBS[self.framework](self, RUNS / package / f"{self.name}.out", loaded)
        return replace(job, ranks=self.ranks)

    def file(self, out: Path) -> str:
        zero = {"stage": self.stage} | ZERO | dict(self.zero)
        file = out.with_suffix(".ds.json")
        file.parent.mkdir(parents=True, exist_ok=True)
        config = BATCH | PRECISIONS | {"zero_optimization": zero} | BY[self.by] | dict(self.config)
        file.write_text(json.dumps(config))
        return str(file)


def _of_trainer(case: Case, out: Path, before: Path | None) -> Job:
    flags = [*TRAINER, *case.flags]
    if case.precision != "fp32":
        flags += [f"--{case.precision}=true", "--use_cpu=true"]
    if before is not None:
        flags.append(f"--resume_from_checkpoint={before / 'checkpoint-3'}")
    paths = ("--output_dir", str(out), "--deepspeed", case.file(out))
    return Job("trainer", (str(RUNS / "model"), *paths, *flags))


def _of_accelerate(case: Case, out: Path, before: Path | None) -> Job:
    precision = "no" if case.precision == "fp32" else case.precision
    settings = (f"--stage={case.stage}", f"--precision={precision}")
    if case.by == "launcher":
        return Job("launching", (str(RUNS / "model"), str(out), *settings))
    return Job("accelerated", (str(RUNS / "model"), str(out), *settings, f"--way={case.by}"))


def _of_trl(case: Case, out: Path, before: Path | None) -> Job:
    kind, *flags = case.flags
    model = str(RUNS / "model")
    return Job("reinforced", (kind, model, str(out), case.file(out), case.precision, *flags))


def _of_lightning(case: Case, out: Path, before: Path | None) -> Job:
    epochs = "2" if before is None else "3"
    return Job("lightning_module", (str(out), str(case.stage), epochs, str(before or "")))


_JOBS: dict[str, Callable[[Case, Path, Path | None], Job]] = {
    "Trainer": _of_trainer,
    "PEFT": _of_trainer,
    "accelerate": _of_accelerate,
    "TRL": _of_trl,
    "Lightning": _of_lightning,
}
RECOMPUTES: dict[str, Any] = {
    "feature": "gradient checkpointing",
    "flags": ("--gradient_checkpointing=true",),
}
OFFLOADED: dict[str, Any] = {
    "feature": "optimizer offloaded",
    "zero": {"offload_optimizer": {"device": "cpu"}},
    "config": {"zero_force_ds_cpu_optimizer": False},
}
RESUMED: tuple[dict[str, Any], ...] = (
    {"feature": "resumed", "resumes_from": "own"},
    {"feature": "resumed from DeepSpeed", "resumes_from": "deepspeed"},
)
ON_TWO_RANKS = tuple(
    case
    for stage in (2, 3)
    for case in (
        *(Case("Trainer", stage, **how, ranks=2) for how in ({}, *RESUMED, RECOMPUTES)),
        *(Case("Trainer", stage, by="script", **how, ranks=2) for how in ({}, RESUMED[0])),
        Case("Trainer", stage, by="script", **OFFLOADED, ranks=2),
        *(Case("accelerate", stage, by=by, ranks=2) for by in ("fields", "file")),
        Case("accelerate", stage, "bf16", "fields", ranks=2),
    )
)
"""accelerate's script saves and loads in one run."""
CASES = (
    *(Case("Trainer", stage) for stage in (0, 1, 2, 3)),
    *(Case("Trainer", stage, by="script") for stage in (0, 1, 2, 3)),
    *(Case("Trainer", 2, by=by) for by in ("optimizer in config", "schedule in config")),
    *(Case("Trainer", stage, "bf16") for stage in (1, 2, 3)),
    *(Case("Trainer", stage, "bf16", "script") for stage in (2, 3)),
    *(Case("Trainer", stage, "fp16") for stage in (1, 2, 3)),
    *(Case("Trainer", stage, **RECOMPUTES) for stage in (2, 3)),
    Case("Trainer", 3, "bf16", **RECOMPUTES),
    *(Case("Trainer", stage, by="script", **OFFLOADED) for stage in (2, 3)),
    *(Case("Trainer", s, feature="resumed", resumes_from="own") for s in (1, 2, 3)),
    *(
        Case(
            "Trainer", stage, precision, feature="resumed from DeepSpeed", resumes_from="deepspeed"
        )
        for stage, precision in ((1, "fp32"), (2, "fp32"), (3, "fp32"), (2, "bf16"), (3, "bf16"))
    ),
    *(Case("accelerate", stage, by="fields") for stage in (1, 2, 3)),
    *(Case("accelerate", stage, by="file") for stage in (1, 2, 3)),
    *(Case("accelerate", stage, "bf16", by) for stage in (2, 3) for by in ("fields", "file")),
    *(Case("accelerate", stage, "fp16", "fields") for stage in (2, 3)),
    *(Case("accelerate", stage, by="launcher") for stage in (2, 3)),
    Case("TRL", 2, by="script", feature="SFT", flags=("sft",)),
    Case("TRL", 3, "bf16", by="script", feature="SFT", flags=("sft",)),
    *(Case("TRL", s, by="script", feature="DPO", flags=("dpo",)) for s in (2, 3)),
    *(Case("TRL", s, by="script", feature="GRPO", flags=("grpo",)) for s in (2, 3)),
    *(Case("PEFT", stage, by="script", feature="LoRA", flags=("--lora",)) for stage in (2, 3)),
    Case("PEFT", 3, "bf16", by="script", feature="LoRA", flags=("--lora",)),
    *(Case("Lightning", stage, by="script") for stage in (1, 2, 3)),
    *(
        Case("Lightning", stage, by="script", feature=f"resumed{suffix}", resumes_from=saver)
        for stage in (2, 3)
        for saver, suffix in (("own", ""), ("deepspeed", " from DeepSpeed"))
    ),
    *ON_TWO_RANKS,
)


BY_NAME = {case.name: case for case in CASES}


def run(case: Case, package: str) -> None:
    """Run a case with a package, and before it the one that it resumes, unless it has a result."""
    if not (RUNS / "model" / "tokenizer.json").exists():
        save_tokenizer(save_model(RUNS / "model"))
    if before := case.before(package):
        name, saver = before
        run(BY_NAME[name], saver)
    run_jobs(package, RUNS / package, {case.name: case.job(package)})


def failure(case: Case, package: str) -> str:
    """Return the last line of the log of a case without a result, "" if it has one."""
    file = RUNS / package / f"{case.name}.json"
    return "" if file.exists() else f"{package}: {_last_line(file.with_suffix('.log'))}"


def compared(case: Case) -> Row:
    """Return the relative difference of each result; True or False for other values.

    DeepSpeed has no gradient norms at stage 0. "failed" names a package without results.
    """
    results: list[dict[str, Any]] = []
    for package in PACKAGES:
        if why := failure(case, package):
            return {"failed": why}
        results.append(json.loads((RUNS / package / f"{case.name}.json").read_text()))
    theirs, ours = results
    names = [name for name, value in theirs.items() if value != [None] * len(ours["losses"])]
    return {name: difference(ours[name], theirs[name]) for name in names}


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "not run")[:160]


def page(rows: Mapping[str, Row]) -> str:
    listed = [(case, rows[case.name]) for case in CASES if case.name in rows]
    good = sum(not differing(row, case.precision) for case, row in listed)
    return comparison.page(
        "The frameworks on dsengine and on DeepSpeed",
        "Each row is one training run of a small language model with an unmodified script "
        "(tests/frameworks/scripts), once with dsengine and once with DeepSpeed 0.19.8, on one "
        "or two CPU ranks. Numbers are the largest difference relative to the largest value: "
        "of losses, gradient norms, and all other numbers (rates, evaluation, predictions, "
        "weight norms). They must be below 1e-5 in fp32 and 5e-3 in 16 bits. "
        "Generated tokens, the class returned by `unwrap_model` and the names of saved files "
        "must be equal, except files inside an engine's own checkpoint. Generated in tests/ by "
        "`python -m frameworks.cases`.",
        f"**{good} of {len(rows)}** agree.",
        HEAD,
        [_row(case, row) for case, row in listed],
    )


def _row(case: Case, row: Row) -> str:
    head = (case.framework, case.stage, case.precision, case.by, case.feature, case.ranks)
    columns = ("losses", "norms", "tokens", "files")
    return " | ".join([*map(str, head), cells(row, case.precision, columns, 2)])


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run", *names]:
            for package in PACKAGES:
                for case in CASES:
                    if case.is_possible() and (not names or case.name in names):
                        run(case, package)
        case ["record"]:
            ran = [case for case in CASES if (RUNS / "dsengine" / f"{case.name}.log").exists()]
            RECORDS.write(RECORDS.read() | {case.name: compared(case) for case in ran})
        case ["page"]:
            PAGE.write_text(page(RECORDS.read()), "utf-8")
        case _:
            raise SystemExit(__doc__)
