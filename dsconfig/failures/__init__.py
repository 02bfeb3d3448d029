"""Identify why a training run failed, from the logs, dumps and stacks of its ranks."""
