"""The engine for one GPU: the same model, to the last bit.

Nothing in this folder is imported before ``engine="cuda"`` is asked for; ``engine`` is where to
enter.
"""
