"""What all tests share."""

import os
from collections import Counter

from hypothesis import HealthCheck, settings

# Seconds that a test takes by its mark, roughly; of others, those of experiments take longer.
USUAL_SECONDS = {"cluster": 2.0, "simulator": 1.0, "browser": 3.0, "subprocess": 1.5, "slow": 2.5}


def pytest_collection_modifyitems(items):
    """Begin with the files that take longest, so that no process is left alone with one."""
    seconds = Counter()
    for item in items:
        marks = USUAL_SECONDS.keys() & {mark.name for mark in item.iter_markers()}
        usual = 0.4 if "experiments" in item.path.parts else 0.05
        seconds[item.path] += max((USUAL_SECONDS[mark] for mark in marks), default=usual)
    items.sort(key=lambda item: -seconds[item.path])


# No example is too slow: the first compiles a kernel, and a busy machine is no fault of the code.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# At home Hypothesis goes on searching.
settings.register_profile("home", patient)
# On a build machine the same examples every time: a red build is about the change.
settings.register_profile("build", patient, derandomize=True)
# For ``make test-quick``: fewer examples of each kind.
settings.register_profile("quick", patient, max_examples=10)
settings.load_profile("build" if os.environ.get("CI") else "home")
