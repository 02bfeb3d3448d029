"""What is seen of a run: memory, time, FLOPs, collectives, monitors, progress; changes nothing."""
