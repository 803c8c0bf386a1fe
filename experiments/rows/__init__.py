"""What rows pay that are asked one by one: ``charge="row"`` beside what else can be done.

``python -m experiments.rows run`` measures, ``python -m experiments.rows table`` shows it.
"""
