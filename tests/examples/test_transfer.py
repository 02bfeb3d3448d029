"""Examples of weight transfer run with stand-ins that have the published signatures."""

import inspect
import json
from operator import attrgetter
from pathlib import Path

import pytest

from examples.stand_ins import verl, vllm
from training.ranks import Ranks

pytestmark = pytest.mark.engine
JOBS = "examples.transfer_jobs"
ORACLE = Path(__file__).parents[1] / "oracle" / "weight_transfer.json"
PUBLISHED = json.loads(ORACLE.read_text("utf-8"))
CHECKED = [
    (module, name)
    for module in (vllm, verl)
    for name in PUBLISHED[module.__name__.rpartition(".")[2]]
    if name != "FSDPEngine.get_per_tensor_param"
]


@pytest.mark.parametrize(("module", "name"), CHECKED)
def test_stand_ins_have_the_published_signatures(module: object, name: str) -> None:
    signature = inspect.signature(attrgetter(name)(module))
    package = module.__name__.rpartition(".")[2]  # type: ignore[attr-defined]
    assert list(signature.parameters) == PUBLISHED[package][name]["parameters"]


@pytest.mark.parametrize("job", ["source", "send"])
def test_vllm_receives_the_current_weights(ranks: Ranks, tmp_path: Path, job: str) -> None:
    assert ranks.run(f"{JOBS}:{job}", folder=str(tmp_path)) == [[], []]


def test_rollout_of_verl_receives_the_current_weights(ranks: Ranks, tmp_path: Path) -> None:
    for result in ranks.run(f"{JOBS}:rollout", folder=str(tmp_path)):
        assert result == {"different": [], "offloads": (False, False)}


def test_engine_for_verl_takes_the_arguments_of_the_one_for_fsdp(ranks: Ranks) -> None:
    parameters = PUBLISHED["verl"]["FSDPEngine.get_per_tensor_param"]["parameters"]
    assert ranks.run(f"{JOBS}:parameters") == [parameters] * 2


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
def test_rollout_of_verl_receives_an_adapter() -> None:
    pytest.importorskip("peft")
    with Ranks(2) as own:
        for result in own.run(f"{JOBS}:adapter_rollout"):
            assert result["rank"] == 4 and "load_format=safetensors" in result["error"]
            assert all(".lora_A." in name or ".lora_B." in name for name in result["names"])
            assert len(result["names"]) == 2 * 7 * 2
