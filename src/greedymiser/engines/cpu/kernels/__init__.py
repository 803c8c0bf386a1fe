"""Loops over rows and bins, compiled for the cores of this machine."""
