"""Shell scripts, read without executing them: which commands run, with which words."""

from dsconfig.source.shell.evaluation import Command, Word, WrittenFile, commands_of

__all__ = ["Command", "Word", "WrittenFile", "commands_of"]
