"""Bills and errors together: ours beside exact trees, a booster that buys everything, and nothing.

``python -m experiments.total_cost DATA`` measures all; DATA has a folder for each set.
"""
