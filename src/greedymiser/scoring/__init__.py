"""Scores that models are chosen by, computed beside the data from raw predictions.

``known_score("roc_auc", ...)`` says what scikit-learn's scorer of that name says, to the last few
bits, without asking a model and checking its answer anew every round: what depends on the target
alone is done once, by ``bind``. Two rules hold for every score:

* The order of the rows does not matter, to the last bit: sums are exact (see ``arithmetic``), or
  sums of integers.
* What scikit-learn warns of or refuses (a class that is missing, predictions that are not finite)
  is left to scikit-learn: the fast way answers NaN, and the scorer itself is asked.
"""

TOTAL_COST = "total_cost"
"""Minus what rows cost in all: the mean of their bills, and that of their errors."""
