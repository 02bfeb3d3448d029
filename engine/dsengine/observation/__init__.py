"""Observation of a run: memory, time, FLOPs, collectives, monitors, progress."""
