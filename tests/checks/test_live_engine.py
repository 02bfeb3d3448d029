"""Refusals that come after the file is read, beside an engine of the real DeepSpeed.

One rank on a CPU, without compiled kernels: what needs more is listed with its reason.
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
    "DSC104": "accelerate stops, not DeepSpeed",
    "DSC702": "accelerate stops, not DeepSpeed",
    "DSC703": "transformers stops, not DeepSpeed",
    "DSC704": "transformers stops, not DeepSpeed",
    "DSC309": "its good example needs the kernel of CPU Adam",
    "DSC310": "CPU Adam must be built before the two are compared",
    "DSC312": "needs a card without bf16",
    "DSC419": "needs 8 ranks",
    "DSC437": "CPU Adagrad must be built before it is refused",
    "DSC462": "needs 8 ranks",
    "DSC464": "needs 2 ranks",
    "DSC471": "only engine.compile() stops",
    "DSC472": "only engine.compile() stops",
    "DSC474": "only engine.compile() stops",
    "DSC476": "only releases before 0.19.4 stop, with 2 ranks",
    "DSC502": "needs a model that fills a node",
    "DSC503": "needs a model of 7 billion parameters, and NVMe",
    "DSC708": "accelerate or torchrun stops, not DeepSpeed",
    "DSC902": "stops when a checkpoint is loaded",
    "DSC916": "stops when deepspeed builds the data loader",
}
GOOD_NEEDS_MORE = {
    "DSC306": "quantised weights have no kernel for a CPU",
    "DSC432": "NVMe offload has a kernel",
    "DSC438": "SuperOffload runs on cards alone",
    "DSC451": "ZenFlow reads the arguments of the optimizer in the file",
    "DSC452": "ZenFlow reads the arguments of the optimizer in the file",
    "DSC453": "ZenFlow reads the arguments of the optimizer in the file",
    "DSC611": "Lamb has a kernel",
    "DSC621": "Muon compiles its iteration, for minutes",
    "DSC622": "Muon compiles its iteration, for minutes",
}
KERNELS = frozenset({"DSC440", "DSC610"})
"""Rules about DeepSpeed's own optimizers: torch's do not take their place."""


def _late() -> dict[str, Rule]:
    return {
        code: rule for code, rule in rules().items() if rule.late and rule.effect is Effect.REFUSED
    }


SHOWN = sorted(_late().keys() - NOT_SHOWN.keys())


def _runnable(text: str, code: str) -> dict[str, Any]:
    """The example with torch's kernels in place of DeepSpeed's, which would be compiled."""
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
        pytest.skip("the verdicts are those of DeepSpeed 0.19.8")


@pytest.mark.parametrize("code", SHOWN)
def test_deepspeed_reads_the_bad_example_and_stops_later(code):
    stop = stop_of(_runnable(rules()[code].bad.config, code))
    assert stop.at in (BUILT, STEPPED), stop
    assert "is not compiled here" not in stop.error


@pytest.mark.parametrize("code", sorted(set(SHOWN) - GOOD_NEEDS_MORE.keys()))
def test_deepspeed_trains_with_the_good_example(code):
    assert stop_of(_runnable(rules()[code].good.config, code)).at == RAN


def test_what_a_cpu_cannot_show_is_a_late_refusal_still():
    assert NOT_SHOWN.keys() <= _late().keys()
