"""Command-line arguments that launchers and training scripts share."""

import argparse


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add ``--deepspeed`` and ``--deepspeed_config`` to ``parser`` and return it."""
    group = parser.add_argument_group("DeepSpeed", "DeepSpeed configuration")
    group.add_argument(
        "--deepspeed",
        default=False,
        action="store_true",
        help="train with DeepSpeed (for scripts; has no effect by itself)",
    )
    group.add_argument(
        "--deepspeed_config", default=None, type=str, help="path of the ds_config file"
    )
    return parser
