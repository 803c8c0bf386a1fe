"""
Which medical tests to order
============================

A clinic wants to know whether a patient's thyroid works. Questions are cheap, blood tests are
expensive, and all blood tests share one blood draw. Which tests should it order for 15, 25 or 50
dollars?

The data is UCI's ann-thyroid, with the prices that Turney published: 16 questions at one dollar
each; four blood tests (TSH, T3, TT4 and T4U), where the first that is ordered also pays $2.10 for
the draw; and the FTI index, which is computed from TT4 and T4U and so needs both.
"""

# %%
# Data and prices
# ---------------
# A third of the training patients is kept to choose models by (validation rows).

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
# Nine of ten patients are healthy, so a model that orders nothing has an accuracy above 0.9.
# Balanced accuracy counts the three classes equally.

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
# For each trade-off between loss and cost there is a greedy model, which buys whatever gains most
# for its price at the next split. Here these models cost nothing, or a lot:

greedy = curve.points[curve.points["found_by"] == "path"]
greedy[["tradeoff", "cost", "n_features", "test_score"]].round(4)

# %%
# The curve also compares whole sets of tests. TSH alone is a good one that the greedy models miss.

for budget in (15, 25, 50):
    model = curve.best(budget=budget)
    score = curve.best_row(budget)["test_score"]
    print(f"for ${budget}: ${model.cost_:.2f}, test score {score:.2f}")
    print("   ", ", ".join(model.features_used_))

# %%
# In which order the last model bought its tests, and how much each gained:

print(model.receipt())

# %%
# Not every patient needs every test
# ----------------------------------
# So far every patient gets the same tests. With ``charge="row"``, each patient pays only for the
# tests that the model asks of this patient, and costs are means over patients.

by_patient = MiserClassifier(costs=data.costs, max_iter=40, charge="row")
rows = tradeoff_curve(by_patient, X, y, tradeoffs=4, effort=0.25, **data_sets)
best = rows.best(budget=26, train=False)
score = rows.best_row(26)["test_score"]
print(f"test score {score:.2f}")
print(best.protocol(X_test))

# %%
# All patients get TSH, and only those who need them get more tests. The score is nearly that of a
# model that costs twice as much. The same protocol as a picture, with what is asked most:

figure, ax = plt.subplots(figsize=(8, 4))
best.protocol(X_test).plot(ax)
figure.tight_layout()

# %%
# Both ways to pay
# ----------------
# For each budget, the test score of the model that was chosen for it on the validation rows.

# sphinx_gallery_thumbnail_number = 2
figure, ax = plt.subplots(figsize=(6, 4))
budgets = range(0, 61, 3)
for name, some in {"same tests for all": curve, "each patient's own tests": rows}.items():
    scores = [some.best_row(budget)["test_score"] for budget in budgets]
    ax.plot(budgets, scores, "o-", markersize=4, label=name)
ax.set(xlabel="budget for a patient ($)", ylabel="balanced accuracy (test)")
ax.set_title("Accuracy for each budget")
ax.grid(alpha=0.3)
ax.legend(loc="lower right")
figure.tight_layout()
