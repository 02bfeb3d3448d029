"""A usual training script with transformers' Trainer."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

from frameworks.files import names_of

VOCABULARY, LENGTH = 97, 12


def samples(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    batch = torch.randint(VOCABULARY, (count, LENGTH), generator=generator)
    return [{"input_ids": tokens, "labels": tokens} for tokens in batch]


def main(model_path: str, arguments: TrainingArguments, lora: bool) -> dict[str, object]:
    result: dict[str, object] = {}
    model = AutoModelForCausalLM.from_pretrained(model_path)
    if lora:
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(1)
        model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    trainer = Trainer(
        model=model, args=arguments, train_dataset=samples(32, 1), eval_dataset=samples(8, 2)
    )
    out = Path(str(arguments.output_dir))
    trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
    result["class"] = type(trainer.accelerator.unwrap_model(trainer.model_wrapped)).__name__
    steps = [step for step in trainer.state.log_history if "loss" in step]
    result["losses"] = [step["loss"] for step in steps]
    result["norms"] = [step.get("grad_norm") for step in steps]
    result["rates"] = [step["learning_rate"] for step in steps]
    result["eval"] = [
        step["eval_loss"] for step in trainer.state.log_history if "eval_loss" in step
    ]
    result["best"] = Path(trainer.state.best_model_checkpoint or "").name
    result["evaluated"] = trainer.evaluate()["eval_loss"]
    result["predicted"] = trainer.predict(samples(4, 3)).metrics["test_loss"]
    prompt = torch.arange(6).view(1, -1).to(arguments.device)
    generated = trainer.model_wrapped.module.generate(prompt, max_new_tokens=6, do_sample=False)
    result["tokens"] = generated.tolist()
    trainer.save_model(str(out / "final"))
    trainer.accelerator.wait_for_everyone()
    result["saved"] = sorted(path.name for path in (out / "final").iterdir())
    result["files"] = names_of(out)
    (weights_file,) = (out / "final").glob("*model.safetensors")
    weights = load_file(weights_file)
    result["weights"] = {name: weight.double().norm().item() for name, weight in weights.items()}
    return result


if __name__ == "__main__":
    lora = "--lora" in sys.argv
    target, model_path, *rest = (flag for flag in sys.argv[1:] if flag != "--lora")
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(rest)
    Path(target).write_text(json.dumps(main(model_path, arguments, lora)))
