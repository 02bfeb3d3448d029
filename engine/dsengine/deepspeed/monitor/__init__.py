"""The monitors without an engine, for scripts that log by themselves."""
