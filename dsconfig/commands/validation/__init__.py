"""Parts of ``dsconfig validate``: input files, settings, checks, fixes and output."""
