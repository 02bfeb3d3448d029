"""For every test."""

from hypothesis import settings

settings.register_profile("suite", deadline=None)  # tests do not look at the clock
settings.load_profile("suite")
