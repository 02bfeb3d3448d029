"""Ranks, jobs and models for the engine's tests and replays."""
