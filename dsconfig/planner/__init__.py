"""Plan: the input of an engine, built from a resolution."""
