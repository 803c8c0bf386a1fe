"""How many random examples a property is tried on."""

from hypothesis import settings


def examples(n, **more):
    """Settings for n examples, or for as few as the profile wants (``make test-quick``)."""
    most = settings.default.max_examples
    return settings(max_examples=n if most >= 100 else min(n, most), deadline=None, **more)
