"""The public names and the cost of importing them."""

import subprocess
import sys
from pathlib import Path

import dsconfig

SURFACE = {
    "Architecture",
    "Capability",
    "Coverage",
    "Degrees",
    "DeviceFacts",
    "Diagnosis",
    "Diagnostic",
    "Document",
    "Effect",
    "Effective",
    "Estimate",
    "FactError",
    "Failure",
    "Facts",
    "HostFacts",
    "LedgerEntry",
    "Mesh",
    "ModelTree",
    "ModuleFact",
    "OPTIMIZERS",
    "OPTIMIZER_CLASSES",
    "Plan",
    "PlanError",
    "Report",
    "Resolution",
    "Severity",
    "Status",
    "TensorFact",
    "TrainingFacts",
    "PlannedStage",
    "PlannedUnit",
    "__version__",
    "architecture_of",
    "capabilities",
    "block_values",
    "complete",
    "diagnose",
    "diff",
    "explain",
    "tune",
    "config_values",
    "replan",
    "estimate",
    "features",
    "gather",
    "hostfile",
    "join_stages",
    "launch_env",
    "nearest_degree",
    "packed_layout",
    "pipelines",
    "refused_in_pipeline",
    "optimizer_type",
    "plan",
    "read",
    "resolve",
    "terminal_text",
    "tiles",
    "validate",
    "ways_to_fit",
    "zero2_model_states",
    "zero2_table",
    "zero3_model_states",
    "zero3_table",
}


RAN = "[name for name, module in sys.modules.items() if type(module).__name__ != '_Unused']"
"""The modules that were executed; deferred ones are listed in sys.modules too, at no cost."""


def modules_after(code: str) -> set[str]:
    code += f"; import sys; print(*{RAN})"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return set(result.stdout.splitlines()[-1].split())


def test_public_names() -> None:
    assert set(dsconfig.__all__) == SURFACE
    assert all(getattr(dsconfig, name) is not None for name in SURFACE)


def test_validate_imports_no_framework() -> None:
    loaded = modules_after(
        "import dsconfig; dsconfig.validate({'train_batch_size': 8, 'bf16': {'enabled': True},"
        " 'zero_optimization': {'stage': 3}})"
    )
    assert not loaded & {"torch", "deepspeed", "transformers", "accelerate", "numpy"}


def test_importing_the_package_is_cheap() -> None:
    assert "pydantic" not in modules_after("import dsconfig")


def modules_of_a_run(tmp_path: Path, config: str) -> set[str]:
    """Return the modules that ``dsconfig validate`` has executed when it exits."""
    (tmp_path / "ds.json").write_text(config)
    code = (
        "import sys; from dsconfig.__main__ import main; "
        f"sys.argv = ['dsconfig', 'validate', {str(tmp_path / 'ds.json')!r}]\n"
        "try: main()\n"
        f"except SystemExit: print(*{RAN})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


CLEAN = """{
    "train_micro_batch_size_per_gpu": 1,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": true},
    "zero_optimization": {"stage": 2},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}
}"""
UNUSED = {
    "dsconfig.facts.gathering": "facts, of which there are none",
    "dsconfig.facts.machine": "facts, of which there are none",
    "dsconfig.facts.training": "facts, of which there are none",
    "dsconfig.cost.estimator": "an estimate",
    "dsconfig.resolver.entry": "values for auto",
    "dsconfig.planner.build": "a plan",
    "dsconfig.schema.json_schema": "schemas for editors",
    "dsconfig.schema.blocks.fp16": "a block that the file does not have",
    "dsconfig.schema.blocks.scheduler": "a block that the file does not have",
    "dsconfig.schema.blocks.torch_optimizers": "optimizers that the file does not have",
    "dsconfig.checks.scheduler": "rules for a block that the file does not have",
    "dsconfig.source.layout": "fixes",
    "dsconfig.source.templates": "placeholders",
    "dsconfig.source.ignores": "ignore comments",
    "dsconfig.source.from_yaml": "YAML",
    "rich": "colors and tables",
    "jsonschema": "schemas for editors",
    "tomllib": "a pyproject.toml with a [tool.dsconfig] section",
}
"""Modules that validating a plain file must not execute, and their purpose."""


def test_validate_imports_only_what_the_file_needs(tmp_path: Path) -> None:
    loaded = modules_of_a_run(tmp_path, CLEAN)
    assert {"dsconfig.checks.zero", "dsconfig.schema.blocks.zero", "pydantic", "typer"} <= loaded
    assert not loaded & UNUSED.keys()


def test_misspelled_key_does_not_import_other_blocks(tmp_path: Path) -> None:
    loaded = modules_of_a_run(tmp_path, CLEAN.replace("gradient_clipping", "gradient_cliping"))
    blocks = {name for name in loaded if name.startswith("dsconfig.schema.blocks.")}
    needed = ("bf16", "zero", "optimizer", "optimizer_params")
    assert blocks == {f"dsconfig.schema.blocks.{name}" for name in needed}


def test_pydantic_plugins_are_disabled_for_this_process_only(
    tmp_path: Path,
) -> None:
    (tmp_path / "ds.json").write_text(CLEAN)
    code = (
        "import importlib.metadata, os, sys\n"
        "def searched(*args, **kwargs): raise AssertionError('plugins were searched for')\n"
        "importlib.metadata.entry_points = searched\n"
        "from dsconfig.__main__ import main\n"
        f"sys.argv = ['dsconfig', 'validate', {str(tmp_path / 'ds.json')!r}]\n"
        "try: main()\n"
        "except SystemExit as left: print(left.code, 'PYDANTIC_DISABLE_PLUGINS' in os.environ)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 False"


ENGINE = {
    "CheckpointError",
    "DeepSpeedConfig",
    "DeepSpeedConfigError",
    "DeepSpeedEngine",
    "DeepSpeedOptimizer",
    "Engine",
    "OnDevice",
    "Progress",
    "RankFailedError",
    "RepeatingLoader",
    "accelerator",
    "add_config_arguments",
    "checkpointing",
    "comm",
    "compression",
    "describe",
    "get_accelerator",
    "init_distributed",
    "initialize",
    "log_dist",
    "logger",
    "measure",
    "moe",
    "ops",
    "pipe",
    "print_measurement",
    "profiling",
    "runtime",
    "schedules",
    "simulate",
    "tp_model_init",
    "utils",
    "zero",
}


def test_public_names_of_the_engine() -> None:
    import dsengine

    assert set(dsengine.__all__) == ENGINE
    assert all(getattr(dsengine, name) is not None for name in ENGINE)


def test_importing_the_engine_imports_no_framework() -> None:
    loaded = modules_after("import dsengine; dsengine.__version__")
    assert not loaded & {"torch", "pydantic", "numpy"}
