"""What the engine's tests and replays train with: ranks, jobs, models."""
