"""The engine for the cores of this machine."""
