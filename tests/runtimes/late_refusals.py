"""Configs that DeepSpeed 0.19.8 parses, and the error during initialization or a step, if any.

``None``: it trains. Otherwise the class of what it raises, and the key that it is about.
"""

from typing import Any

from training import models
from training.live_jobs import real_deepspeed

Stop = tuple[str, str] | None


def optimizer(kind: Any, **params: Any) -> dict[str, Any]:
    return {"optimizer": {"type": kind, "params": params}}


def schedule(kind: Any, **params: Any) -> dict[str, Any]:
    return {**optimizer("AdamW", lr=1e-3), "scheduler": {"type": kind, "params": params}}


LR, EPS, BETAS, DECAY = (
    f"/optimizer/params/{name}" for name in ("lr", "eps", "betas", "weight_decay")
)
STEPS, TOTAL = (f"/scheduler/params/{name}" for name in ("warmup_num_steps", "total_num_steps"))
GRADIENTS, PARAMETERS = "/data_types/grad_accum_dtype", "/data_types/param_dtype"
BF16 = {"bf16": {"enabled": True}}
STAGE_2 = {"zero_optimization": {"stage": 2}}
CASES: list[tuple[dict[str, Any], Stop]] = [
    (optimizer("AdamW", lr=1e-3), None),
    (optimizer("SGD", lr=1e-3), None),
    (optimizer("Foo", lr=1e-3), ("AssertionError", "/optimizer/type")),
    (optimizer("sgd", lr=1e-3), ("AssertionError", "/optimizer/type")),
    (optimizer("AdamW", lr=0.0, eps=0.0, weight_decay=0.0, betas=[0.0, 0.0]), None),
    # DeepSpeed's kernel does not check the ranges, torch's classes do.
    (optimizer("AdamW", lr=-1e-3), None),
    (optimizer("Adam", eps=-1e-8), None),
    (optimizer("AdamW", weight_decay=-0.1), None),
    (optimizer("AdamW", betas=[0.9, 1.0]), None),
    (optimizer("AdamW", betas=[0.9]), ("ValueError", BETAS)),
    (optimizer("AdamW", lr="x"), ("TypeError", LR)),
    (optimizer("AdamW", amsgrad=True), ("RuntimeError", "/optimizer/params/amsgrad")),
    (optimizer("AdamW", learning_rate=0.1), ("TypeError", "/optimizer/params/learning_rate")),
    (optimizer("AdamW", torch_adam=True, lr=-1e-3), ("ValueError", LR)),
    (optimizer("Adam", torch_adam=True, eps=-1e-8), ("ValueError", EPS)),
    (optimizer("AdamW", torch_adam=True, weight_decay=-0.1), ("ValueError", DECAY)),
    (optimizer("AdamW", torch_adam=True, betas=[0.9, 1.0]), ("ValueError", f"{BETAS}/1")),
    (optimizer("AdamW", torch_adam=True, betas=[-0.1, 0.9]), ("ValueError", f"{BETAS}/0")),
    (optimizer("AdamW", torch_adam=True, betas=[1.0, 0.9]), ("ValueError", f"{BETAS}/0")),
    (optimizer("AdamW", torch_adam=True, betas=[0.9]), ("IndexError", BETAS)),
    (optimizer("AdamW", torch_adam=True, lr="x"), ("TypeError", LR)),
    (optimizer("SGD", lr=-1e-3), ("ValueError", LR)),
    (schedule("StepLR", step_size=3), None),
    (schedule("OneCycle", cycle_min_lr=1e-4, cycle_max_lr=1e-3), None),
    (schedule("LRRangeTest"), None),
    (schedule("WarmupLR", warmup_num_steps=1), None),
    (schedule("Foo"), ("AssertionError", "/scheduler/type")),
    (schedule("warmuplr"), ("AssertionError", "/scheduler/type")),
    (schedule("WarmupLR", warmup_num_steps=0), ("ValueError", STEPS)),
    (schedule("WarmupLR", warmup_num_steps=2.5), ("ValueError", STEPS)),
    (schedule("WarmupLR", warmup_min_lr="0"), ("TypeError", "/scheduler/params/warmup_min_lr")),
    (schedule("WarmupLR", warmup_max_lr="1"), ("TypeError", "/scheduler/params/warmup_max_lr")),
    (schedule("WarmupDecayLR", total_num_steps=10, warmup_num_steps=2), None),
    (schedule("WarmupDecayLR", warmup_num_steps=2), ("TypeError", TOTAL)),
    (schedule("WarmupDecayLR", total_num_steps="ten"), ("TypeError", TOTAL)),
    (schedule("WarmupCosineLR", total_num_steps=10, warmup_num_steps=2), None),
    (schedule("WarmupCosineLR"), ("TypeError", TOTAL)),
    (schedule("WarmupCosineLR", total_num_steps="ten"), ("TypeError", TOTAL)),
    ({"gradient_clipping": 0.5}, None),
    ({"gradient_clipping": "0.5"}, ("TypeError", "/gradient_clipping")),
    ({"steps_per_print": 1}, None),
    ({"steps_per_print": None}, None),
    ({"steps_per_print": 0}, ("ZeroDivisionError", "/steps_per_print")),
    ({"steps_per_print": "1"}, ("TypeError", "/steps_per_print")),
    ({"data_types": {"grad_accum_dtype": "fp32"}}, None),
    ({"data_types": {"grad_accum_dtype": "float33"}}, ("ValueError", GRADIENTS)),
    ({"data_types": {"param_dtype": "wide"}}, ("ValueError", PARAMETERS)),
    ({"data_types": {"buffer_dtype": []}}, None),  # buffers are cast with the parameters alone
    ({"data_types": {"buffer_dtype": "wide"}, **BF16}, ("ValueError", "/data_types/buffer_dtype")),
    ({"data_types": {"buffer_dtype": "fp32"}, **BF16}, None),
    ({"data_types": {"param_dtype": "fp16"}, **BF16}, ("AssertionError", PARAMETERS)),
    ({"data_types": {"param_dtype": "bf16"}, **BF16}, None),
    ({"data_types": {"param_dtype": "bf16"}}, ("AssertionError", PARAMETERS)),
    ({"data_types": {"param_dtype": "fp32"}}, None),
    ({"data_types": {"grad_accum_dtype": "fp32"}, **BF16}, ("NotImplementedError", GRADIENTS)),
    ({"data_types": {"grad_accum_dtype": "fp16"}, **BF16}, ("NotImplementedError", GRADIENTS)),
    ({"data_types": {"grad_accum_dtype": "bf16"}}, ("NotImplementedError", GRADIENTS)),
    ({"data_types": {"grad_accum_dtype": "fp16"}, **STAGE_2}, None),
    ({"data_types": {"grad_accum_dtype": "bf16"}, **BF16, **STAGE_2}, None),
    ({"data_types": {"grad_accum_dtype": "fp32"}, **BF16, **STAGE_2}, None),
]  # fmt: skip
BASE = {"train_micro_batch_size_per_gpu": 1}


def config_of(case: dict[str, Any]) -> dict[str, Any]:
    return {**BASE, **({} if "optimizer" in case else optimizer("AdamW", lr=1e-3)), **case}


def by_deepspeed(configs: list[dict[str, Any]]) -> list[str | None]:
    """Return the exceptions that the real program raises during initialization and two steps."""
    return [_trained(config) for config in configs]


def _trained(config: dict[str, Any]) -> str | None:
    deepspeed = real_deepspeed()
    model = models.tied(blocks=1)
    try:
        engine, *_ = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), config=config
        )
        for step in range(2):
            engine.backward(engine(models.batch(step, 0, 0)))
            engine.step()
    except Exception as error:  # whichever class it is, that is the answer
        return type(error).__name__
    return None
