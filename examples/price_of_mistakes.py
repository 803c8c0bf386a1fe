"""
What a mistake costs
====================

A clinic pays for tests, and for patients whom it sends home ill. It has no budget: it has two price
lists, and asks what costs least in all. The data is UCI's ann-thyroid with Turney's prices; what
errors cost is made up.
"""

# %%
# Two price lists
# ---------------
# To send home somebody whose thyroid does not work (classes 1 and 2) costs 50 dollars, a false
# alarm 10. Then asking for nothing costs 50 for each of the few who are ill:

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
# A curve that is scored by the total cost has the least total at its top. ``best()`` needs no
# budget.


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
# A blood test costs 22.78, and of a hundred patients seven are ill: at these prices the clinic had
# better ask for nothing. That is a decision, too, and nobody has to guess it.
#
# Where mistakes are expensive
# ----------------------------
# Ten times the error costs, and asking pays. Each row pays for what it is asked for, so that only
# patients in doubt are asked for more.

costly = least_total(10, "row")
print(str(costly).splitlines()[-1])
print(total_cost(costly.best(), *test))

# %%
# Beside LightGBM, which buys all that its trees look at, and beside saying the same of everybody:

booster = lightgbm.LGBMClassifier(n_estimators=50, verbose=-1, n_jobs=1).fit(X, y)
bought = baseline(booster, data.costs, error_costs=errors(10))
flat = least_total(10, "model")
rows = {
    "nothing": total_cost(flat.models[0].truncate(0), *test),
    "the best set for all": total_cost(flat.best(), *test),
    "each row its own": total_cost(costly.best(), *test),
    "LightGBM": total_cost(bought, *test),
}
for name, cost in rows.items():
    print(f"{name:20} {cost}")

# %%
# What it is made of: bills and errors, in dollars a patient.

_, ax = plt.subplots(figsize=(6.5, 2.6), layout="constrained")
places = np.arange(len(rows))
ax.barh(places, [cost.bill for cost in rows.values()], label="bills")
ax.barh(
    places,
    [cost.errors for cost in rows.values()],
    left=[cost.bill for cost in rows.values()],
    label="errors",
)
ax.set_yticks(places, list(rows))
ax.invert_yaxis()
ax.set_xlabel("dollars a patient")
ax.legend()
plt.show()
