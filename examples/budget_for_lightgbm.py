"""
A budget for an existing LightGBM model
=======================================

A LightGBM model is in production, and was trained without thought for prices. What does one of its
predictions cost, and how much accuracy would a smaller budget lose?
"""

# %%
# The model as it is
# ------------------
# The thyroid data, with the prices of its questions and blood tests in dollars.

import lightgbm
import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import train_test_split

from greedymiser import MiserClassifier, baseline, to_lightgbm, tradeoff_curve
from greedymiser.datasets import load_thyroid

data = load_thyroid()
frame, X_test = data.as_frame()
X, X_val, y, y_val = train_test_split(
    frame, data.y_train, test_size=1 / 3, stratify=data.y_train, random_state=0
)
theirs = lightgbm.LGBMClassifier(n_estimators=40, max_depth=4, verbose=-1, n_jobs=1).fit(X, y)

# %%
# ``baseline`` reads which features the trees use, and computes the cost by the same rules as for
# our models: what several features share is paid once.

metered = baseline(theirs, data.costs)
their_score = balanced_accuracy_score(data.y_test, metered.predict(X_test))
print(f"{len(metered.features_used_)} features for ${metered.cost_:.2f},", end=" ")
print(f"balanced accuracy {their_score:.3f}")

# %%
# What a budget would save
# ------------------------

curve = tradeoff_curve(
    MiserClassifier(costs=data.costs, max_iter=40),
    X,
    y,
    X_val=X_val,
    y_val=y_val,
    X_test=X_test,
    y_test=data.y_test,
    tradeoffs=4,
    effort=0.25,
    scoring="balanced_accuracy",
    cost_unit="dollars",
)
for share in (1.0, 0.75, 0.5):
    row = curve.best_row(share * metered.cost_)
    print(f"{share:4.0%} of that: ${row['cost']:5.2f}, balanced accuracy {row['test_score']:.3f}")

# %%
# Into the same service
# ---------------------
# The service reads LightGBM's model files. Our model can be exported to one, which gives the same
# probabilities.

best = curve.best(budget=0.75 * metered.cost_)
booster = lightgbm.Booster(model_str=to_lightgbm(best))
same = np.allclose(booster.predict(X_test.to_numpy()), best.predict_proba(X_test), rtol=1e-12)
print("the same probabilities:", same)

# %%
# The picture
# -----------
# For each budget, the test score of the model that was chosen for it on the validation rows.

figure, ax = plt.subplots(figsize=(6, 4))
budgets = range(0, 64, 3)
scores = [curve.best_row(budget)["test_score"] for budget in budgets]
ax.plot(budgets, scores, "o-", markersize=4, label="greedymiser, for each budget")
ax.plot(metered.cost_, their_score, "*", markersize=15, color="#D55E00", label="LightGBM model")
ax.set(xlabel="budget for a patient ($)", ylabel="balanced accuracy (test)")
ax.set_title("A LightGBM model beside budgets")
ax.grid(alpha=0.3)
ax.legend(loc="lower right")
figure.tight_layout()
plt.show()
