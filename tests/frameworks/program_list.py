"""The programs of others: how their users start each, on two ranks, with a tiny model."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from frameworks.program_files import dataset, model, written, zero_config
from frameworks.running import SCRIPTS

RANKS = 2
STEPS = 4
TRAINER: Mapping[str, Any] = {
    "max_steps": STEPS,
    "per_device_train_batch_size": 2,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "save_steps": STEPS,
    "gradient_checkpointing": False,
    "report_to": "none",
    "disable_tqdm": True,
    "dataloader_num_workers": 0,
}
SETS: Mapping[str, tuple[str, ...]] = {
    "trl": (
        *("trl", "peft", "datasets", "sentence-transformers", "lightning", "lightning-utilities"),
        *("pytorch-lightning", "torchmetrics", "pyarrow", "dill", "xxhash", "multiprocess"),
        *("pandas", "python-dateutil", "six", "pytz", "tzdata", "scikit-learn", "scipy", "joblib"),
        *("threadpoolctl", "jinja2", "aiohttp", "cloudpickle", "narwhals"),
    ),
    "examples": (
        *("torchvision==0.29.1", "torchaudio==2.11.0", "diffusers==0.42.1", "evaluate==0.4.6"),
        *("requests", "charset-normalizer", "urllib3", "certifi", "importlib_metadata", "zipp"),
        *("multidict", "yarl", "frozenlist", "aiosignal", "propcache", "aiohappyeyeballs"),
        *("loguru", "sh==1.14.3", "fire", "termcolor", "sentencepiece"),
    ),
    "chat": (
        *("transformers==4.57.6", "tokenizers==0.22.2", "huggingface_hub==0.36.2"),
        *("datasets==4.0.0", "dill==0.3.8", "multiprocess==0.70.16", "fsspec==2025.3.0"),
    ),
    "llamafactory": (
        *("llamafactory==0.9.5", "transformers==5.6.0", "trl==0.24.0", "peft==0.18.1"),
        *("datasets==4.0.0", "tyro==0.8.14", "docstring_parser", "shtab", "fire", "termcolor"),
        *("omegaconf", "antlr4-python3-runtime==4.9.3", "sentencepiece", "tiktoken"),
        *("gradio==5.50.0", "modelscope", "modelscope_hub", "av<=16", "torchdata", "uvicorn"),
        *("fastapi", "starlette", "sse-starlette", "hf-transfer", "scipy", "dill==0.3.8"),
        *("multiprocess==0.70.16", "fsspec==2025.3.0", "tokenizers==0.22.2", "httpx", "httpcore"),
        "huggingface_hub==1.33.0",
    ),
    "swift": (
        *("ms-swift==4.6.0", "transformers==5.19.0", "trl==0.29.1", "peft==0.20.0"),
        *("datasets==4.8.4", "modelscope", "modelscope_hub", "addict", "attrdict", "binpacking"),
        *("cpm-kernels", "dacite", "json-repair", "nltk", "openai", "oss2", "rouge", "simplejson"),
        *("sentencepiece", "tiktoken", "transformers-stream-generator", "zstandard", "fastapi"),
        *("starlette", "uvicorn", "dill==0.4.0", "multiprocess==0.70.16", "crcmod", "pycryptodome"),
        *("aliyun-python-sdk-core", "aliyun-python-sdk-kms", "jmespath", "cryptography", "cffi"),
        *("distro", "jiter", "sniffio", "gradio", "httpx", "httpcore", "huggingface_hub==1.33.0"),
    ),
    "axolotl": (
        *("axolotl==0.19.0", "transformers==5.16.1", "accelerate==1.13.0", "trl==1.9.0"),
        *("peft==0.20.0", "datasets==4.8.4", "tokenizers==0.23.1", "huggingface_hub==1.17.0"),
        *("optimum", "addict", "fire", "termcolor", "sentencepiece", "colorama", "numba"),
        *("llvmlite", "art", "python-dotenv", "zstandard", "fastcore", "schedulefree"),
        *("axolotl-contribs-lgpl==0.0.7", "axolotl-contribs-mit==0.0.6", "posthog==6.7.11"),
        *("torchao==0.17.0", "kernels==0.16.0", "kernels_data", "evaluate", "langdetect"),
        *("immutabledict", "openenv-core==0.1.0", "backoff", "distro", "dill==0.4.0"),
        *("multiprocess==0.70.18", "pydantic==2.12.5", "pydantic_core==2.41.5"),
        *("typing_inspection", "httpx", "httpcore", "bitsandbytes==0.50.2", "triton==3.9.0"),
        *("wandb==0.19.11", "docker-pycreds", "setproctitle", "sentry_sdk", "gitpython", "gitdb"),
        *("smmap", "platformdirs", "protobuf==6.33.0"),
    ),
}
"""Packages of each set, installed in a folder of its own without their dependencies: those would
replace torch."""


@dataclass(frozen=True, slots=True)
class Run:
    """The folders of one run."""

    runs: Path
    out: Path
    sources: Path
    """Checkouts of repositories with example scripts."""

    def config(self, stage: int) -> str:
        return str(written(self.out.with_suffix(".ds.json"), zero_config(stage)))


Starter = Callable[["Program", Run], list[str]]


@dataclass(frozen=True, slots=True)
class Program:
    """One command line, run with both packages on two ranks."""

    label: str
    """Its name in the table."""
    start: Starter
    """Returns the command line, and writes the files that it names."""
    stage: int
    precision: str = "fp32"
    sets: tuple[str, ...] = ("trl",)
    """The first has precedence."""
    source: str = ""
    """The script in a checkout that has to exist."""
    path: str = ""
    """A folder in a checkout that contains its package."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    remark: str = ""
    """Why a difference is expected."""
    unavailable: str = ""
    """Why it cannot run here."""

    @property
    def name(self) -> str:
        words = f"{self.label} {self.stage} {self.precision}".lower()
        return "-".join(words.replace("(", "").replace(")", "").replace("/", " ").split())


def _flags(options: Mapping[str, Any]) -> list[str]:
    """Return ``--name value``; booleans as Trainer reads them."""
    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }
    return list(chain.from_iterable((f"--{name}", text) for name, text in texts.items()))


def _torchrun(*command: str) -> list[str]:
    return ["torchrun", "--standalone", f"--nproc-per-node={RANKS}", *command]


def _trainer(program: Program, run: Run) -> dict[str, Any]:
    return dict(TRAINER) | {
        "output_dir": run.out,
        "deepspeed": run.config(program.stage),
        "bf16": program.precision == "bf16",
    }


def _of_trl(
    module: str, data: str, *more: str, kind: str = "causal", program: Program, run: Run
) -> list[str]:
    options = _trainer(program, run) | {
        "model_name_or_path": model(run.runs, kind),
        "dataset_name": dataset(run.runs, data),
    }
    target = ["-m", module] if "." in module else [str(SCRIPTS / f"{module}.py")]
    return [*_torchrun(*target), *_flags(options), *more]


def _json(run: Run) -> Path:
    """Return the dataset with the file extension that scripts of transformers expect."""
    lines = dataset(run.runs, "text") / "train.jsonl"
    return written(lines.with_suffix(".json"), lines.read_text())


def _of_run_clm(program: Program, run: Run, kind: str = "exact") -> list[str]:
    options = _trainer(program, run) | {
        "model_name_or_path": model(run.runs, kind),
        "train_file": _json(run),
        "validation_file": _json(run),
        "do_train": True,
        "block_size": 16,
    }
    return [*_torchrun(str(run.sources / program.source)), *_flags(options)]


def _of_llamafactory(program: Program, run: Run) -> list[str]:
    data = dataset(run.runs, "instructions")
    written(data / "dataset_info.json", {"words": {"file_name": "train.jsonl"}})
    settings = _trainer(program, run) | {
        "model_name_or_path": model(run.runs, "causal"),
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "lora" if "LoRA" in program.label else "full",
        "dataset_dir": data,
        "dataset": "words",
        "template": "default",
        "cutoff_len": 64,
    }
    return ["llamafactory-cli", "train", _yaml(run.out.with_suffix(".yaml"), settings)]


def _yaml(path: Path, settings: Mapping[str, Any]) -> str:
    """Write JSON, which is YAML."""
    return str(written(path, json.dumps(settings, default=str, indent=1)))


def _of_swift(program: Program, run: Run) -> list[str]:
    options = _trainer(program, run) | {
        "model": model(run.runs, "chat"),
        "model_type": "llama",
        "template": "chatml",
        "tuner_type": "lora" if "LoRA" in program.label else "full",
        "dataset": dataset(run.runs, "chats") / "train.jsonl",
        "torch_dtype": "float32" if program.precision == "fp32" else "bfloat16",
        "fp16": False,
        "split_dataset_ratio": 0,
    }
    return ["python", "-m", "swift.cli.main", "sft", *_flags(options)]


def _of_axolotl(program: Program, run: Run) -> list[str]:
    settings = {
        "base_model": model(run.runs, "chat"),
        "datasets": [{"path": dataset(run.runs, "text") / "train.jsonl", "type": "completion"}],
        "dataset_prepared_path": run.out.with_suffix(".prepared"),
        "output_dir": run.out,
        "deepspeed": run.config(program.stage),
        "sequence_len": 64,
        "max_steps": STEPS,
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 1,
        "learning_rate": 1e-3,
        "optimizer": "adamw_torch",
        "lr_scheduler": "linear",
        "logging_steps": 1,
        "bf16": program.precision == "bf16",
        "tf32": False,
        "seed": 7,
    }
    file = _yaml(run.out.with_suffix(".yaml"), settings)
    return [*_accelerate(program, run), "-m", "axolotl.cli.train", file]


def _accelerate(program: Program, run: Run) -> list[str]:
    """Return the launcher; a configuration file leaves the precision to the script."""
    return [
        *("accelerate", "launch", "--use_deepspeed", "--num_machines=1", "--main_process_port=0"),
        f"--num_processes={RANKS}",
        f"--deepspeed_config_file={run.config(program.stage)}",
    ]


def _of_accelerate(*more: str, program: Program, run: Run) -> list[str]:
    script = str(run.sources / program.source)
    words = [word.format(out=run.out, runs=run.runs) for word in more]
    precision = "no" if program.precision == "fp32" else program.precision
    stage = [f"--zero_stage={program.stage}", f"--mixed_precision={precision}"]
    launch = [
        *("accelerate", "launch", "--use_deepspeed", "--num_machines=1", "--main_process_port=0"),
        *(f"--num_processes={RANKS}", "--gradient_accumulation_steps=1"),
        *(*stage, "--zero3_save_16bit_model=true", "--zero3_init_flag=false"),
    ]
    return [*launch, script, *words]


def _of_config_support(program: Program, run: Run, kind: str = "biased") -> list[str]:
    data = _json(run)
    folder = model(run.runs, kind)
    options = {
        "config_name": folder,
        "tokenizer_name": folder,
        "train_file": data,
        "validation_file": data,
        "block_size": 16,
        "per_device_train_batch_size": 2,
        "max_train_steps": STEPS,
        "learning_rate": 1e-3,
        "seed": 7,
        "output_dir": run.out,
        "checkpointing_steps": "epoch",
    }
    script = str(run.sources / program.source)
    return [*_accelerate(program, run), script, *_flags(options), "--load_best_model"]


def _of_hello(program: Program, run: Run) -> list[str]:
    options = {
        "checkpoint_dir": run.out,
        "num_layers": 2,
        "num_heads": 4,
        "ff_dim": 64,
        "h_dim": 32,
        "batch_size": 2,
        "num_iterations": STEPS + 1,
        "checkpoint_every": STEPS,
        "log_every": 1,
        "dtype": program.precision,
    }
    return [*_torchrun(str(run.sources / program.source)), *_flags(options)]


def _of_chat(program: Program, run: Run) -> list[str]:
    checkout = (run.sources / program.source).parents[2]
    pairs = [{"prompt": "the last word", "chosen": " yes", "rejected": " no"}] * 16
    lines = "".join(json.dumps(pair) + "\n" for pair in pairs)
    for split in ("train", "eval"):
        written(checkout / "data" / f"{split}.json", lines)
    options = {
        "data_path": "local/jsonfile",
        "data_output_path": run.out.with_suffix(".data"),
        "model_name_or_path": model(run.runs, "files"),
        "data_split": "10,0,0",
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "max_seq_len": 32,
        "learning_rate": 1e-3,
        "num_train_epochs": 1,
        "zero_stage": program.stage,
        "dtype": program.precision,
        "output_dir": run.out,
    }
    script = str(run.sources / program.source)
    return ["deepspeed", f"--num_gpus={RANKS}", script, *_flags(options), "--print_loss"]


def _unavailable(label: str, reason: str) -> Program:
    return Program(label, lambda program, run: [], 2, unavailable=reason)


LORA = ("--use_peft", "--lora_r", "4", "--lora_target_modules", "q_proj", "v_proj")
GENERATES = (
    *("--num_generations", "2", "--max_completion_length", "8", "--beta", "1.0"),
    *("--reward_funcs", "frameworks.rewards.length_of"),
)
SHORT = ("--max_length", "24")
IMAGES = (
    *("--train_data_dir", "{runs}/hub/images", "--model_config_name_or_path", "{runs}/hub/unet"),
    *("--resolution", "16", "--train_batch_size", "2", "--num_epochs", "2", "--eval_batch_size"),
    *("1", "--ddpm_num_inference_steps", "2", "--lr_warmup_steps", "0", "--dataloader_num_workers"),
    *("0", "--checkpointing_steps", "100", "--output_dir", "{out}"),
)


def _pair(label: str, start: Callable[..., list[str]], **more: Any) -> tuple[Program, ...]:
    """Return the program at stages 2 and 3."""
    return tuple(Program(label, start, stage, **more) for stage in (2, 3))


def _trl(label: str, *arguments: str, **more: Any) -> tuple[Program, ...]:
    def start(program: Program, run: Run) -> list[str]:
        return _of_trl(*arguments, **more, program=program, run=run)

    return _pair(label, start)


def _script(*words: str) -> Starter:
    return lambda program, run: _of_accelerate(*words, program=program, run=run)


ON_LAUNCHERS = {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": str(RANKS)}
factory = partial(Program, start=_of_llamafactory, sets=("llamafactory", "examples", "trl"))
axolotl = partial(Program, "axolotl", _of_axolotl, sets=("axolotl", "examples", "trl"))
swift = partial(Program, start=_of_swift, sets=("swift", "examples", "trl"))
EXAMPLES = ("examples", "trl")
_SFT = _trl("TRL SFT", "trl.scripts.sft", "text", *SHORT)
PROGRAMS: tuple[Program, ...] = (
    *_SFT,
    Program("TRL SFT", _SFT[0].start, 3, "bf16"),
    *_trl("TRL SFT (LoRA)", "trl.scripts.sft", "text", *SHORT, *LORA),
    *_trl("TRL DPO", "trl.scripts.dpo", "preference", *SHORT),
    *_trl("TRL KTO", "trl.scripts.kto", "labelled", *SHORT),
    *_trl("TRL reward", "trl.scripts.reward", "ranked", *SHORT, kind="reward"),
    *_trl("TRL GRPO", "trl.scripts.grpo", "prompts", *GENERATES),
    *_trl("TRL RLOO", "trl.scripts.rloo", "prompts", *GENERATES),
    *_trl("sentence-transformers", "sentences", "pairs"),
    *_pair(
        "transformers run_clm",
        _of_run_clm,
        sets=EXAMPLES,
        source="transformers/examples/pytorch/language-modeling/run_clm.py",
    ),
    Program(
        "transformers run_clm (larger vocabulary)",
        partial(_of_run_clm, kind="causal"),
        3,
        sets=EXAMPLES,
        source="transformers/examples/pytorch/language-modeling/run_clm.py",
        remark="DeepSpeed's partitioned embedding has 0 rows, so the script shrinks it; dsengine "
        "trains as both packages do at stage 2",
    ),
    *(factory("LLaMA-Factory SFT", stage=s, environment=ON_LAUNCHERS) for s in (2, 3)),
    factory("LLaMA-Factory SFT", stage=3, precision="bf16", environment=ON_LAUNCHERS),
    *(factory("LLaMA-Factory SFT (LoRA)", stage=s, environment=ON_LAUNCHERS) for s in (2, 3)),
    *(swift("ms-swift SFT", stage=s, environment=ON_LAUNCHERS) for s in (2, 3)),
    *(swift("ms-swift SFT (LoRA)", stage=s, environment=ON_LAUNCHERS) for s in (2, 3)),
    axolotl(stage=2, remark="below stage 3 axolotl places the model on a GPU"),
    axolotl(stage=3),
    *_pair(
        "accelerate nlp_example",
        _script(),
        sets=EXAMPLES,
        source="accelerate/examples/nlp_example.py",
    ),
    *_pair(
        "accelerate complete_nlp_example",
        _script("--checkpointing_steps", "epoch", "--output_dir", "{out}"),
        sets=EXAMPLES,
        source="accelerate/examples/complete_nlp_example.py",
    ),
    *_pair(
        "accelerate deepspeed_with_config_support",
        _of_config_support,
        sets=EXAMPLES,
        source="accelerate/examples/by_feature/deepspeed_with_config_support.py",
    ),
    Program(
        "accelerate deepspeed_with_config_support (an empty parameter group)",
        partial(_of_config_support, kind="causal"),
        3,
        remark="its stage 3 drops the group; dsengine completes",
        sets=EXAMPLES,
        source="accelerate/examples/by_feature/deepspeed_with_config_support.py",
    ),
    *_pair(
        "diffusers train_unconditional",
        _script(*IMAGES),
        sets=EXAMPLES,
        source="diffusers/examples/unconditional_image_generation/train_unconditional.py",
    ),
    Program(
        "DeepSpeedExamples HelloDeepSpeed",
        _of_hello,
        1,
        "bf16",
        sets=EXAMPLES,
        source="DeepSpeedExamples/training/HelloDeepSpeed/train_bert_ds.py",
    ),
    *_pair(
        "DeepSpeed-Chat step 1",
        _of_chat,
        precision="bf16",
        sets=("chat", *EXAMPLES),
        path="DeepSpeedExamples/applications/DeepSpeed-Chat",
        source="DeepSpeedExamples/applications/DeepSpeed-Chat/training/"
        "step1_supervised_finetuning/main.py",
    ),
    _unavailable(
        "DeepSpeedExamples cifar", "torchvision checks the downloaded data against its checksum"
    ),
    _unavailable("DeepSpeedExamples bing_bert", "initializes NCCL and always trains on CUDA"),
    _unavailable(
        "OpenRLHF train_sft", "imports flash_attn and creates a CUDA device mesh: requires a GPU"
    ),
)
