"""Files of a project: its settings, its configs, the program that runs each, and their fixes."""
