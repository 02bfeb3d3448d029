"""The monitors by themselves, for scripts that write curves beside an engine."""
