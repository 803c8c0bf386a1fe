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

data_sets = {
    "X_val": X_val,
    "y_val": y_val,
    "X_test": X_test,
    "y_test": data.y_test,
    "scoring": "balanced_accuracy",
    "cost_unit": "dollars",
}
model = MiserClassifier(costs=data.costs, max_iter=40)
curve = tradeoff_curve(model, X, y, tradeoffs=4, effort=0.25, **data_sets)
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
# Not every patient needs every test
# ----------------------------------
# So far the model buys a test once, for everybody. With ``charge="row"`` a patient pays for what is
# asked on the way of that patient, and costs are means over patients.

by_patient = MiserClassifier(costs=data.costs, max_iter=40, charge="row")
rows = tradeoff_curve(by_patient, X, y, tradeoffs=4, effort=0.25, **data_sets)
best = rows.best(budget=26, train=False)
score = rows.best_row(26)["test_score"]
print(f"test score {score:.2f}")
print(best.protocol(X_test))

# %%
# TSH for everybody, and more blood only where it is needed: nearly the score of a model for twice
# the money. The same as a picture, of the questions that are asked most:

figure, ax = plt.subplots(figsize=(8, 4))
best.protocol(X_test).plot(ax)
figure.tight_layout()

# %%
# Both ways to pay
# ----------------

# sphinx_gallery_thumbnail_number = 2
figure, ax = plt.subplots(figsize=(8, 4.5))
for name, some in {"the same for all patients": curve, "each patient pays": rows}.items():
    front = some.pareto()
    ax.step(front["cost"], front["test_score"], where="post", label=name)
ax.set(xlabel="dollars for a patient, on average", ylabel="test balanced accuracy")
ax.grid(alpha=0.3)
ax.legend(loc="lower right")
figure.tight_layout()
