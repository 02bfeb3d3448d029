"""The Plan: one training run, decided."""
