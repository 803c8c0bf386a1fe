"""What all tests share."""

import os

from hypothesis import HealthCheck, settings

# No example is too slow: the first compiles a kernel, and a busy machine is no fault of the code.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# At home Hypothesis goes on searching.
settings.register_profile("home", patient)
# On a build machine the same examples every time: a red build is about the change.
settings.register_profile("build", patient, derandomize=True)
# For ``make test-quick``: fewer examples of each kind.
settings.register_profile("quick", patient, max_examples=10)
settings.load_profile("build" if os.environ.get("CI") else "home")
