"""The parts of ``dsconfig validate``: what to judge, how, and what to do with the findings."""
