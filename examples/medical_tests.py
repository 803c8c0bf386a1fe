"""
Which medical tests to order
============================

A clinic wants to know whether a patient's thyroid works. Questions are cheap, blood tests are not,
and the tests share one draw. What should be asked for 15, 25 or 50 dollars?

The data is UCI's ann-thyroid, with the prices that Turney published: 16 questions at one dollar
each; TSH, T3, TT4 and T4U, of which the first also pays 2.10 for the draw; and the FTI index, which
is computed from TT4 and T4U and so needs both.
"""

# %%
# Data and prices
# ---------------
# A third of the training patients is kept to choose models by.

import matplotlib.pyplot as plt
from sklearn.model_selection import train_test_split

from greedymiser import MiserClassifier, tradeoff_curve
from greedymiser.datasets import load_thyroid

data = load_thyroid()
frame, X_test = data.as_frame()
X, X_val, y, y_val = train_test_split(
    frame, data.y_train, test_size=1 / 3, stratify=data.y_train, random_state=0
)
for test in ("age", "TSH", "TT4", "FTI"):
    alone = data.costs.total([test])
    print(f"{test:4} costs ${alone:5.2f} alone, ${data.costs.total(['TSH', test]):5.2f} with TSH")

# %%
# What each budget buys
# ---------------------
# Nine of ten patients are healthy, so accuracy would flatter a model that orders nothing: balanced
# accuracy counts the three classes alike.

curve = tradeoff_curve(
    MiserClassifier(costs=data.costs, max_iter=40),
    X,
    y,
    X_val=X_val,
    y_val=y_val,
    X_test=X_test,
    y_test=data.y_test,
    tradeoffs=4,
    effort=0.5,
    scoring="balanced_accuracy",
    cost_unit="dollars",
)
curve.pareto()[["cost", "n_features", "score", "test_score"]].round(3)

# %%
# Three budgets
# -------------
# Greedy models, one for each trade-off, buy what promises most for its price at the next split.
# Here they cost nothing, or a lot:

greedy = curve.points[curve.points["found_by"] == "path"]
greedy[["tradeoff", "cost", "n_features", "test_score"]].round(4)

# %%
# Beyond them, the curve compares whole sets of tests. TSH alone is one that greed passes by.

for budget in (15, 25, 50):
    model = curve.best(budget=budget)
    score = curve.best_row(budget)["test_score"]
    print(f"for ${budget}: ${model.cost_:.2f}, test score {score:.2f}")
    print("   ", ", ".join(model.features_used_))

# %%
# The order of purchases of the last one, and what each promised:

print(model.receipt())

# %%
# The picture
# -----------
# Steps are what each budget buys; stars were found by the search.

figure, ax = plt.subplots(figsize=(8, 4.5))
curve.plot(ax)
figure.tight_layout()
