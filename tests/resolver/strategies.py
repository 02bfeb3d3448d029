"""Hypothesis strategies: configs with any key "auto", and complete facts."""

from typing import Any

from hypothesis import strategies as st

from dsconfig.facts import ModelTree, hf_config

AUTO = "auto"
CARDS = ("v100-16gb", "v100-32gb", "t4", "a100-40gb", "a100-80gb", "h100", "rtx-4090")
MODELS = ("gpt2", "gpt2-xl", "llama-3.2-1b", "llama-2-7b", "llama-2-13b", "qwen2.5-32b")


def wide(hidden: int) -> ModelTree:
    """A Llama-like decoder of four layers, which is priced in a tenth of the time of forty."""
    shape = {"model_type": "llama", "hidden_size": hidden, "num_hidden_layers": 4}
    heads = {"num_attention_heads": hidden // 128, "intermediate_size": 11 * hidden // 4}
    return hf_config.model(shape | heads | {"vocab_size": 32_000})


def switch() -> st.SearchStrategy[Any]:
    return st.sampled_from([AUTO, True, False])


def size() -> st.SearchStrategy[Any]:
    return st.sampled_from([AUTO, 1_000_000, 50_000_000, 200_000_000])


def block(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A block in which every key may be absent."""
    return st.fixed_dictionaries({}, optional=keys)


def offload() -> st.SearchStrategy[Any]:
    written = st.fixed_dictionaries({"device": st.just(AUTO)}, optional={"pin_memory": switch()})
    return st.one_of(st.just(AUTO), written)


STAGE = st.fixed_dictionaries({"stage": st.sampled_from([AUTO, 0, 1, 2, 3])})
TUNING = block(
    offload_optimizer=offload(),
    offload_param=offload(),
    overlap_comm=switch(),
    contiguous_gradients=switch(),
    reduce_bucket_size=size(),
    allgather_bucket_size=size(),
    sub_group_size=size(),
    stage3_prefetch_bucket_size=size(),
    stage3_param_persistence_threshold=size(),
    stage3_max_live_parameters=size(),
)
ZERO = st.tuples(STAGE, TUNING).map(lambda parts: parts[0] | parts[1])
OPTIMIZER = st.fixed_dictionaries(
    {
        "type": st.sampled_from([AUTO, "AdamW", "Adam"]),
        "params": block(
            lr=st.sampled_from([AUTO, 3e-4]),
            betas=st.sampled_from([AUTO, [0.9, 0.95]]),
            eps=st.sampled_from([AUTO, 1e-6]),
            weight_decay=st.sampled_from([AUTO, 0.1]),
        ),
    }
)
SCHEDULER = st.fixed_dictionaries(
    {
        "type": st.just("WarmupDecayLR"),
        "params": st.fixed_dictionaries(
            {
                "warmup_min_lr": st.sampled_from([AUTO, 0, 1e-6]),
                "warmup_max_lr": st.sampled_from([AUTO, 3e-4]),
                "warmup_num_steps": st.sampled_from([AUTO, 10, 500]),
                "total_num_steps": st.sampled_from([AUTO, 2000]),
            }
        ),
    }
)
TRIPLE = block(
    train_batch_size=st.just(AUTO),
    train_micro_batch_size_per_gpu=st.sampled_from([AUTO, AUTO, 1, 2, 4]),
    gradient_accumulation_steps=st.sampled_from([AUTO, AUTO, 1, 2]),
)
REST = block(
    fp16=block(enabled=st.just(AUTO), loss_scale=st.sampled_from([AUTO, 0])),
    bf16=block(enabled=st.just(AUTO)),
    gradient_clipping=st.sampled_from([AUTO, 0.5, 1.0]),
    communication_data_type=st.just(AUTO),
    optimizer=OPTIMIZER,
    scheduler=SCHEDULER,
    activation_checkpointing=block(partition_activations=switch(), cpu_checkpointing=switch()),
    zero_optimization=ZERO,
)


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """Any of these keys, in any order."""
    keys = {**draw(TRIPLE), **draw(REST)}
    if "train_micro_batch_size_per_gpu" not in keys:
        keys["train_batch_size"] = AUTO
    order = draw(st.permutations(list(keys)))
    return {key: keys[key] for key in order}


@st.composite
def worlds(draw: st.DrawFn) -> dict[str, Any]:
    """Flags for ``gather``, nothing missing; the global batch divides by everything above."""
    ranks = draw(st.sampled_from([1, 2, 8, 64]))
    return {
        "gpus": ranks,
        "device": draw(st.sampled_from(CARDS)),
        "model": draw(st.sampled_from(MODELS)),
        "global_batch": ranks * draw(st.sampled_from([8, 16, 64, 96])),
        "seq_len": draw(st.sampled_from([128, 512])),
        "learning_rate": 1e-4,
        "total_steps": 1000,
        "warmup_steps": draw(st.sampled_from([None, 0, 0.1, 100])),
        "host_memory": draw(st.sampled_from([None, "1TB"])),
    }
