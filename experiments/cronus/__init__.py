"""Cronus, a cascade that the paper compares with (Chen et al., AISTATS 2012)."""

from experiments.cronus.cronus import Cronus

__all__ = ["Cronus"]
