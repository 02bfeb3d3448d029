"""Late errors compared with the installed DeepSpeed: when it stops, and the exception.

One rank on a CPU, with the examples as they are; rules that need more are listed with the reason.
"""

import pytest

import dsconfig
from checks.real_deepspeed import BUILT, RAN, STEPPED, Stop, compile_kernels, stop_of
from dsconfig.checks.registry import rules
from dsconfig.checks.rule import Example, Phase, Rule
from dsconfig.report import Effect
from dsconfig.schema import NEWEST, Version

pytestmark = [pytest.mark.live, pytest.mark.engine, pytest.mark.filterwarnings("ignore")]

SHOWN_ELSEWHERE = {
    "DSC104": "accelerate fails, not DeepSpeed",
    "DSC702": "accelerate fails, not DeepSpeed",
    "DSC703": "transformers fails, not DeepSpeed",
    "DSC704": "transformers fails, not DeepSpeed",
    "DSC708": "accelerate or torchrun fails, not DeepSpeed",
    "DSC479": "dsengine fails, not DeepSpeed",
    "DSC478": "shown on 2 ranks by test_live_parallel",
    "DSC874": "shown on 2 ranks by test_live_parallel",
    "DSC876": "shown on 2 ranks by test_live_parallel",
}
NOT_SHOWN = SHOWN_ELSEWHERE | {
    code: rule.from_source for code, rule in rules().items() if rule.from_source
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


def _late() -> dict[str, Rule]:
    return {
        code: rule for code, rule in rules().items() if rule.late and rule.effect is Effect.REFUSED
    }


SHOWN = sorted(_late().keys() - NOT_SHOWN.keys())


def _stop(example: Example) -> Stop:
    return stop_of(dsconfig.read(example.config).value, example.facts.get("client_optimizer"))


@pytest.fixture(scope="module", autouse=True)
def _newest():
    deepspeed = pytest.importorskip("deepspeed")
    if Version.parse(deepspeed.__version__) < NEWEST:
        pytest.skip(f"requires DeepSpeed {NEWEST}")
    compile_kernels()


@pytest.mark.parametrize("code", SHOWN)
def test_deepspeed_fails_late_with_bad_example(code):
    rule = rules()[code]
    stop = _stop(rule.bad)
    assert stop.at == (STEPPED if rule.stop.phase is Phase.STEP else BUILT), stop
    assert not rule.stop.exception or stop.error.startswith(f"{rule.stop.exception}:"), stop


@pytest.mark.parametrize("code", sorted(set(SHOWN) - GOOD_NEEDS_MORE.keys()))
def test_deepspeed_trains_with_good_example(code):
    assert _stop(rules()[code].good).at == RAN


def test_rules_not_run_on_cpu_are_late():
    assert NOT_SHOWN.keys() <= _late().keys()
