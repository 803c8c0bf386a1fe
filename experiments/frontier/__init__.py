"""What every budget buys: the curve beside LightGBM's penalty and a search of subsets.

``python -m experiments.frontier run`` measures, ``python -m experiments.frontier table`` shows.
"""
