"""A usual training script with sentence-transformers."""

import sys

from datasets import load_dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.losses import MultipleNegativesRankingLoss
from transformers import HfArgumentParser

if __name__ == "__main__":
    words = sys.argv[1:]
    named = {}
    for name in ("--model_name_or_path", "--dataset_name"):
        place = words.index(name)
        named[name] = words[place + 1]
        del words[place : place + 2]
    parser = HfArgumentParser(SentenceTransformerTrainingArguments)
    (arguments,) = parser.parse_args_into_dataclasses(words)
    model = SentenceTransformer(named["--model_name_or_path"])
    trainer = SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=load_dataset(named["--dataset_name"])["train"],
        loss=MultipleNegativesRankingLoss(model),
    )
    trainer.train()
