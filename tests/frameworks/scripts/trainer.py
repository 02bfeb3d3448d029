"""A script around transformers' Trainer as people write it; nothing in it knows who trains."""

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
    made = torch.randint(VOCABULARY, (count, LENGTH), generator=generator)
    return [{"input_ids": each, "labels": each} for each in made]


def main(model_path: str, arguments: TrainingArguments, lora: bool) -> dict[str, object]:
    told: dict[str, object] = {}
    model = AutoModelForCausalLM.from_pretrained(model_path)
    if lora:
        from peft import LoraConfig, get_peft_model  # type: ignore[import-not-found]

        torch.manual_seed(1)
        model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
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
    told["files"] = names_of(out)
    (weights_file,) = (out / "final").glob("*model.safetensors")
    weights = load_file(weights_file)
    told["weights"] = {name: weight.double().norm().item() for name, weight in weights.items()}
    return told


if __name__ == "__main__":
    lora = "--lora" in sys.argv
    target, model_path, *rest = (each for each in sys.argv[1:] if each != "--lora")
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(rest)
    Path(target).write_text(json.dumps(main(model_path, arguments, lora)))
