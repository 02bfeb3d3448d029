"""Train the byte-level GPT: ``dsconfig run gpt_zero3.json --gpus 2 -- train_gpt.py``.

The tour runs it twice: the second run resumes from the checkpoint of the first.
"""

import argparse
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import torch

import dsconfig
import dsengine
from gpt import StandardLibrary, from_json

HERE = Path(__file__).parent


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30, help="optimizer steps of this run")
    parser.add_argument("--model", type=Path, default=HERE / "gpt.json")
    parser.add_argument("--folder", type=Path, default=Path("runs/gpt"))
    parser.add_argument("--resume", action="store_true", help="continue from the latest checkpoint")
    parser.add_argument("--export", type=Path, help="write full weights as safetensors here")
    return dsengine.add_config_arguments(parser).parse_args()


def main() -> None:
    options = arguments()
    torch.manual_seed(0)
    model = from_json(options.model)
    context = model.positions.num_embeddings
    engine, _, loader, _ = dsengine.initialize(
        args=options,
        model=model,
        model_parameters=model.parameters(),
        training_data=StandardLibrary(context),
        training=dsconfig.TrainingFacts(sequence_length=context),
    )
    if options.resume:
        path, _ = engine.load_checkpoint(options.folder)
        if path is None:
            raise SystemExit(f"no checkpoint in {options.folder}")
    batches = iter(dsengine.RepeatingLoader(loader))
    train(engine, batches, options.steps, context)
    engine.save_checkpoint(options.folder)
    if options.export:
        engine.save_16bit_model(options.export)
        measured = dsengine.measure(engine, lambda: train_window(engine, batches))
        dsengine.print_measurement(measured)
    engine.destroy()


def train(
    engine: dsengine.Engine, batches: Iterator[torch.Tensor], steps: int, context: int
) -> None:
    """Run ``steps`` optimizer steps with a progress bar on rank 0."""
    tokens = engine.train_batch_size() * context
    engine.train()
    with dsengine.Progress(engine, steps=steps, tokens_per_step=tokens) as progress:
        for _ in range(steps):
            train_window(engine, batches, progress.update)


def train_window(
    engine: dsengine.Engine,
    batches: Iterator[torch.Tensor],
    seen: Callable[[torch.Tensor], None] = lambda loss: None,
) -> None:
    """One optimizer step: as many micro batches as the config accumulates."""
    for batch in islice(batches, engine.gradient_accumulation_steps()):
        loss = engine(batch.to(engine.device))
        engine.backward(loss)
        engine.step()
        seen(loss)


if __name__ == "__main__":
    main()
