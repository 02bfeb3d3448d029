"""The command-line arguments that launchers and training scripts agree on."""

import argparse


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add ``--deepspeed`` and ``--deepspeed_config`` to ``parser`` and return it."""
    group = parser.add_argument_group("DeepSpeed", "what to train with")
    group.add_argument(
        "--deepspeed",
        default=False,
        action="store_true",
        help="train with an engine (scripts read this switch; it changes nothing by itself)",
    )
    group.add_argument(
        "--deepspeed_config", default=None, type=str, help="path of the ds_config file"
    )
    return parser
