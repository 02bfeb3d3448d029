"""Late errors compared with the installed DeepSpeed.

One rank on a CPU, without compiled kernels; rules that need more are listed with the reason.
"""

import json
from typing import Any

import pytest

import dsconfig
from checks.real_deepspeed import BUILT, RAN, STEPPED, stop_of
from dsconfig.checks.registry import rules
from dsconfig.checks.rule import Rule
from dsconfig.report import Effect

pytestmark = [pytest.mark.live, pytest.mark.engine, pytest.mark.filterwarnings("ignore")]

NOT_SHOWN = {
    "DSC104": "accelerate fails, not DeepSpeed",
    "DSC702": "accelerate fails, not DeepSpeed",
    "DSC703": "transformers fails, not DeepSpeed",
    "DSC704": "transformers fails, not DeepSpeed",
    "DSC309": "its good example needs the kernel of CPU Adam",
    "DSC310": "CPU Adam must be built before the two are compared",
    "DSC312": "needs a GPU without bf16",
    "DSC419": "needs 8 ranks",
    "DSC437": "CPU Adagrad must be built before it is refused",
    "DSC462": "needs 8 ranks",
    "DSC464": "needs 2 ranks",
    "DSC471": "only engine.compile() fails",
    "DSC472": "only engine.compile() fails",
    "DSC474": "only engine.compile() fails",
    "DSC476": "only releases before 0.19.4 fail, with 2 ranks",
    "DSC502": "needs a model that fills a node",
    "DSC503": "needs a model of 7 billion parameters, and NVMe",
    "DSC708": "accelerate or torchrun fails, not DeepSpeed",
    "DSC902": "fails when a checkpoint is loaded",
    "DSC916": "fails when deepspeed creates the data loader",
}
GOOD_NEEDS_MORE = {
    "DSC306": "quantized weights have no CPU kernel",
    "DSC432": "NVMe offload has a kernel",
    "DSC438": "SuperOffload requires a GPU",
    "DSC451": "ZenFlow reads the arguments of the optimizer in the file",
    "DSC452": "ZenFlow reads the arguments of the optimizer in the file",
    "DSC453": "ZenFlow reads the arguments of the optimizer in the file",
    "DSC611": "Lamb has a kernel",
    "DSC621": "Muon compiles its iteration, for minutes",
    "DSC622": "Muon compiles its iteration, for minutes",
}
KERNELS = frozenset({"DSC440", "DSC610"})
"""Rules about DeepSpeed's own optimizers, which torch's cannot replace."""


def _late() -> dict[str, Rule]:
    return {
        code: rule for code, rule in rules().items() if rule.late and rule.effect is Effect.REFUSED
    }


SHOWN = sorted(_late().keys() - NOT_SHOWN.keys())


def _runnable(text: str, code: str) -> dict[str, Any]:
    """Return the example with torch's optimizers instead of DeepSpeed's compiled ones."""
    config: dict[str, Any] = json.loads(json.dumps(dsconfig.read(text).value))
    if code in KERNELS:
        return config
    optimizer = config.get("optimizer")
    if isinstance(optimizer, dict) and str(optimizer.get("type")).lower() in ("adam", "adamw"):
        optimizer.setdefault("params", {}).setdefault("torch_adam", True)
    config.setdefault("zero_force_ds_cpu_optimizer", False)
    return config


@pytest.fixture(scope="module", autouse=True)
def _newest():
    deepspeed = pytest.importorskip("deepspeed")
    if not deepspeed.__version__.startswith("0.19.8"):
        pytest.skip("requires DeepSpeed 0.19.8")


@pytest.mark.parametrize("code", SHOWN)
def test_deepspeed_fails_late_with_bad_example(code):
    stop = stop_of(_runnable(rules()[code].bad.config, code))
    assert stop.at in (BUILT, STEPPED), stop
    assert "is not compiled here" not in stop.error


@pytest.mark.parametrize("code", sorted(set(SHOWN) - GOOD_NEEDS_MORE.keys()))
def test_deepspeed_trains_with_good_example(code):
    assert stop_of(_runnable(rules()[code].good.config, code)).at == RAN


def test_rules_not_run_on_cpu_are_late():
    assert NOT_SHOWN.keys() <= _late().keys()
