"""Models, data and configurations for the programs of others, below one folder.

``hub`` contains what a script loads from the Hugging Face Hub, under the same names: it is the
working directory of every program, where these names are folders.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from frameworks.tiny import LETTERS, LLAMA, SPECIAL, save_model, save_tokenizer

WORDS = ("a small model", "many large steps", "the last word", "one more try", "two cards", "rain")
DATA: Mapping[str, Callable[[str], Mapping[str, Any]]] = {
    "text": lambda words: {"text": f"{words}, {words}."},
    "preference": lambda words: {"prompt": words, "chosen": " yes", "rejected": " never"},
    "ranked": lambda words: {"chosen": f"{words} yes", "rejected": f"{words} never"},
    "labelled": lambda words: {"prompt": words, "completion": " yes", "label": len(words) % 2 == 0},
    "prompts": lambda words: {"prompt": words},
    "pairs": lambda words: {"anchor": words, "positive": f"{words} again"},
    "instructions": lambda words: {"instruction": words, "input": "", "output": f"{words} again"},
    "chats": lambda words: {"messages": [_turn("user", words), _turn("assistant", "again")]},
}
BERT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "vocab_size": 97,
}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "reward": {"num_labels": 1},
    "biased": {"attention_bias": True},
    "exact": {"vocab_size": len(SPECIAL) + 1 + len(LETTERS)},
}
"""In addition to the sizes of LLAMA; "exact" has no tokens that the tokenizer does not have, and
"files" has a tokenizer that writes its vocabulary."""
METRIC = """
import datasets
import evaluate


class Accuracy(evaluate.Metric):
    def _info(self):
        value = datasets.Value("int64")
        features = datasets.Features({"predictions": value, "references": value})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        return {"accuracy": sum(map(int.__eq__, predictions, references)) / len(references)}
"""
BLOCKS = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
UNET = {
    "_class_name": "UNet2DModel",
    "sample_size": 16,
    "layers_per_block": 1,
    "block_out_channels": (8, 16),
    "norm_num_groups": 4,
    **BLOCKS,
}


def _turn(role: str, words: str) -> dict[str, str]:
    return {"role": role, "content": words}


def zero_config(stage: int) -> dict[str, Any]:
    """Return a configuration that transformers and accelerate fill in."""
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


def written(path: Path, content: Any) -> Path:
    """Write text, or anything else as JSON, with its folder; return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def model(runs: Path, kind: str) -> Path:
    """Return the folder of a model with its tokenizer."""
    folder = runs / "models" / kind
    if not (folder / "tokenizer_config.json").exists():
        cls = "LlamaForSequenceClassification" if kind == "reward" else "LlamaForCausalLM"
        more = MODELS.get(kind, {})
        prefix = "never" if kind == "chat" else "always"
        tokenizer = "GPT2TokenizerFast" if kind == "files" else "PreTrainedTokenizerFast"
        save_tokenizer(save_model(folder, cls, **(LLAMA | dict(more))), tokenizer, prefix)
    return folder


def dataset(runs: Path, kind: str) -> Path:
    """Return the folder of a dataset with the file ``train.jsonl``."""
    lines = [json.dumps(DATA[kind](words)) for words in WORDS]
    return written(runs / "data" / kind / "train.jsonl", "\n".join(lines) + "\n").parent


def save_hub(hub: Path) -> None:
    """Write what the scripts load by a name of the hub."""
    if (hub / "ready").exists():
        return
    written(hub / "glue" / "glue.py", METRIC)
    pairs = [
        {"sentence1": one, "sentence2": other, "label": int(one == other), "idx": place}
        for place, (one, other) in enumerate((one, other) for one in WORDS for other in WORDS)
    ]
    lines = [json.dumps(pair) + "\n" for pair in pairs]
    files = [{"split": split, "path": f"{split}.jsonl"} for split in ("train", "validation")]
    for file in files:
        written(hub / "nyu-mll" / "glue" / file["path"], "".join(lines))
    described = json.dumps({"configs": [{"config_name": "mrpc", "data_files": files}]})
    written(hub / "nyu-mll" / "glue" / "README.md", f"---\n{described}\n---\n")
    bert = save_model(hub / "bert-base-cased", "BertForSequenceClassification", **BERT)
    save_tokenizer(bert)
    roberta = hub / "roberta-base"
    roberta.mkdir()
    save_tokenizer(roberta, bos_token="</s>", mask_token="<unk>")
    text = "".join(json.dumps({"text": f"{words}, {words}."}) + "\n" for words in WORDS * 4)
    written(hub / "wikitext" / "train.jsonl", text)
    files = [{"split": "train", "path": "train.jsonl"}]
    described = json.dumps({"configs": [{"config_name": "wikitext-2-v1", "data_files": files}]})
    written(hub / "wikitext" / "README.md", f"---\n{described}\n---\n")
    written(hub / "unet" / "config.json", UNET)
    _save_images(hub / "images")
    written(hub / "ready", "")


def _save_images(folder: Path) -> None:
    from PIL import Image

    folder.mkdir(parents=True)
    for shade in range(8):
        Image.new("RGB", (16, 16), (30 * shade, 20 * shade, 10)).save(folder / f"{shade}.png")
