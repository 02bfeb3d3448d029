"""What the installed transformers loads under ``zero.Init``, the ground of DSC504 and DSC868."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.live, pytest.mark.long]
SCRIPT = """
import os, sys
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1",
    LOCAL_RANK="0", DS_ACCELERATOR="cpu")
import torch, torch.distributed, transformers
from safetensors.torch import save_file
from transformers.integrations import HfDeepSpeedConfig
store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
name, folder, quantized = sys.argv[1], sys.argv[2], sys.argv[3] == "quantized"
sizes = dict(hidden_size=64, intermediate_size=64, num_hidden_layers=2, vocab_size=96,
    num_attention_heads=4, num_key_value_heads=4)
kind = getattr(transformers, name)
if name.startswith("Qwen3_5"):
    sizes |= dict(head_dim=16, layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2, linear_num_value_heads=2)
    image = dict(hidden_size=32, intermediate_size=64, depth=1, num_heads=2, out_hidden_size=64)
    config = transformers.Qwen3_5Config(text_config=sizes, vision_config=image)
else:
    config = transformers.LlamaConfig(**sizes)
written = kind(config)
written.config.save_pretrained(folder)
values = {key: value.contiguous().clone() for key, value in written.state_dict().items()}
save_file(values, f"{folder}/model.safetensors", metadata={"format": "pt"})
kept = HfDeepSpeedConfig({"train_batch_size": 1, "zero_optimization": {"stage": 3}})
options = {}
if quantized:
    options = dict(quantization_config=transformers.BitsAndBytesConfig(load_in_4bit=True))
model, report = kind.from_pretrained(folder, output_loading_info=True, **options)
sharded = sum(hasattr(each, "ds_id") for each in model.parameters())
print("missing", len(report["missing_keys"]), "sharded", sharded, "of",
    sum(1 for _ in model.parameters()))
"""


def loaded(name: str, folder: Path, how: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, name, str(folder), how],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip().splitlines()[-1]


def test_installed_release_loads_qwen3_5(tmp_path: Path) -> None:
    _, missing, _, sharded, _, tensors = loaded(
        "Qwen3_5ForConditionalGeneration", tmp_path, "plain"
    ).split()
    assert missing == "0" and sharded == tensors


def test_quantized_weights_are_not_sharded_while_loading(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    assert loaded("LlamaForCausalLM", tmp_path, "quantized") == "missing 0 sharded 0 of 21"
