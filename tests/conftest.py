"""What all tests share."""

import os

from hypothesis import settings

# On a build machine the same examples every time: a red build is about the change. At home
# Hypothesis goes on searching.
settings.register_profile("build", derandomize=True)
# For ``make test-quick``: fewer examples of each kind.
settings.register_profile("quick", max_examples=10, deadline=None)
if os.environ.get("CI"):
    settings.load_profile("build")
