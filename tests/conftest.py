"""Settings of every test: the same examples on every run, and no deadline on a machine that is shared."""

from hypothesis import settings

settings.register_profile("paceline", deadline=None, derandomize=True)
settings.load_profile("paceline")
