"""Settings for all tests."""

from hypothesis import settings

# The first example of a test may compile a kernel; time is measured in benchmarks, not here.
settings.register_profile("fedgs", deadline=None)
settings.load_profile("fedgs")
