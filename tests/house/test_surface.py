"""The public names, and what importing them may cost."""

import subprocess
import sys

import dsconfig

SURFACE = {
    "Architecture",
    "Coverage",
    "DeviceFacts",
    "Diagnostic",
    "Document",
    "Effect",
    "Effective",
    "Estimate",
    "Facts",
    "HostFacts",
    "LedgerEntry",
    "ModelTree",
    "ModuleFact",
    "Plan",
    "Report",
    "Resolution",
    "Severity",
    "Status",
    "TensorFact",
    "TrainingFacts",
    "UnitSchedule",
    "__version__",
    "architecture_of",
    "estimate",
    "gather",
    "plan",
    "read",
    "resolve",
    "validate",
}


def modules_after(code: str) -> set[str]:
    code += "; import sys; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return set(result.stdout.splitlines()[-1].split())


def test_the_public_surface_is_exactly_this() -> None:
    assert set(dsconfig.__all__) == SURFACE
    assert all(getattr(dsconfig, name) is not None for name in SURFACE)


def test_validating_imports_no_framework() -> None:
    loaded = modules_after(
        "import dsconfig; dsconfig.validate({'train_batch_size': 8, 'bf16': {'enabled': True},"
        " 'zero_optimization': {'stage': 3}})"
    )
    assert not loaded & {"torch", "deepspeed", "transformers", "accelerate", "numpy"}


def test_importing_the_package_imports_nothing_else() -> None:
    assert "pydantic" not in modules_after("import dsconfig")
