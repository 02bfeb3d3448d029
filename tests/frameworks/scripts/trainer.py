"""A script around transformers' Trainer as people write it; nothing in it knows who trains."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

VOCABULARY, LENGTH = 97, 12


def samples(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    made = torch.randint(VOCABULARY, (count, LENGTH), generator=generator)
    return [{"input_ids": each, "labels": each} for each in made]


def main(model_path: str, arguments: TrainingArguments) -> dict[str, object]:
    told: dict[str, object] = {}
    model = AutoModelForCausalLM.from_pretrained(model_path)
    trainer = Trainer(
        model=model, args=arguments, train_dataset=samples(32, 1), eval_dataset=samples(8, 2)
    )
    out = Path(str(arguments.output_dir))
    trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
    told["class"] = type(trainer.accelerator.unwrap_model(trainer.model_wrapped)).__name__
    steps = [each for each in trainer.state.log_history if "loss" in each]
    told["losses"] = [each["loss"] for each in steps]
    told["norms"] = [each.get("grad_norm") for each in steps]
    told["rates"] = [each["learning_rate"] for each in steps]
    told["eval"] = [each["eval_loss"] for each in trainer.state.log_history if "eval_loss" in each]
    told["best"] = Path(trainer.state.best_model_checkpoint or "").name
    told["evaluated"] = trainer.evaluate()["eval_loss"]
    told["predicted"] = trainer.predict(samples(4, 3)).metrics["test_loss"]  # type: ignore[arg-type]
    prompt = torch.arange(6).view(1, -1).to(arguments.device)
    generated = trainer.model_wrapped.module.generate(prompt, max_new_tokens=6, do_sample=False)
    told["tokens"] = generated.tolist()
    trainer.save_model(str(out / "final"))
    told["saved"] = sorted(each.name for each in (out / "final").iterdir())
    weights = load_file(out / "final" / "model.safetensors")
    told["weights"] = {name: weight.double().sum().item() for name, weight in weights.items()}
    return told


if __name__ == "__main__":
    target, model_path, *rest = sys.argv[1:]
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(rest)
    Path(target).write_text(json.dumps(main(model_path, arguments)))
