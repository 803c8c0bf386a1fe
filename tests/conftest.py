"""What all tests share."""

import os

from hypothesis import settings

# On a build machine the same examples every time: a red build is about the change. At home
# Hypothesis goes on searching.
settings.register_profile("build", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("build")
