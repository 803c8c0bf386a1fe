"""
What a mistake costs
====================

A clinic pays for tests, and it pays for patients whom it wrongly sends home. It has no budget, but
two price lists, and wants the lowest total of both. The data is UCI's ann-thyroid with Turney's
prices of tests; the costs of errors are invented.
"""

# %%
# Two price lists
# ---------------
# Sending home somebody whose thyroid does not work (classes 1 and 2) costs 50 dollars, a false
# alarm (class 3 is healthy) 10. A correct answer costs nothing.

import lightgbm
import matplotlib.pyplot as plt
import numpy as np
from sklearn.model_selection import train_test_split

from greedymiser import MiserClassifier, baseline, total_cost, tradeoff_curve
from greedymiser.datasets import load_thyroid

data = load_thyroid()
X, X_val, y, y_val = train_test_split(
    data.X_train, data.y_train, test_size=1 / 3, stratify=data.y_train, random_state=0
)
test = data.X_test, data.y_test


def errors(factor):
    """What errors cost: 50 for somebody who is ill and sent home, 10 for a false alarm."""
    missed, alarm = 50.0 * factor, 10.0 * factor
    return {1: {3: missed}, 2: {3: missed}, 3: {1: alarm, 2: alarm}}


# %%
# The least total
# ---------------
# With ``scoring="total_cost"``, models are compared by the sum of both costs, and ``best()`` needs
# no budget: it is the model with the lowest total.


def least_total(factor, charge):
    """The curve of total costs, at a multiple of the error costs."""
    model = MiserClassifier(
        costs=data.costs, charge=charge, error_costs=errors(factor), max_iter=20, n_jobs=1
    )
    return tradeoff_curve(
        model, X, y, X_val=X_val, y_val=y_val, tradeoffs=3, effort=0.1, scoring="total_cost",
        cost_unit="dollars",
    )  # fmt: skip


curve = least_total(1, "model")
print(str(curve).splitlines()[-1])

# %%
# A blood test costs $22.78, and seven of a hundred patients are ill. At these prices it is cheapest
# to order no test at all, and the curve says so.
#
# Where mistakes are expensive
# ----------------------------
# With error costs ten times as high, tests pay. With ``charge="row"`` each patient pays only for
# the own tests, so only patients in doubt get more of them.

costly = least_total(10, "row")
print(str(costly).splitlines()[-1])
print(total_cost(costly.best(), *test))

# %%
# Compared with LightGBM, which pays for every feature that its trees use, with the best set of
# tests for all patients, and with no test at all (one answer for everybody):

booster = lightgbm.LGBMClassifier(n_estimators=50, verbose=-1, n_jobs=1).fit(X, y)
bought = baseline(booster, data.costs, error_costs=errors(10))
flat = least_total(10, "model")
rows = {
    "no tests": total_cost(flat.models[0].truncate(0), *test),
    "same tests for all": total_cost(flat.best(), *test),
    "each patient's own": total_cost(costly.best(), *test),
    "LightGBM": total_cost(bought, *test),
}
for name, cost in rows.items():
    print(f"{name:20} {cost}")

# %%
# The two parts of the total, in dollars per patient:

_, ax = plt.subplots(figsize=(6, 4), layout="constrained")
places = np.arange(len(rows))
ax.barh(places, [cost.bill for cost in rows.values()], label="tests")
ax.barh(
    places,
    [cost.errors for cost in rows.values()],
    left=[cost.bill for cost in rows.values()],
    label="errors",
)
ax.set_yticks(places, list(rows))
ax.invert_yaxis()
ax.set_xlabel("mean cost of a patient ($)")
ax.set_title("What tests and errors cost together")
ax.legend()
plt.show()
