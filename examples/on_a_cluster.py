"""
Train on a Dask cluster
=======================

A data set that is too large for one machine lies in parts on the workers of a Dask cluster.
Estimators take Dask arrays and data frames as they are. Rows stay on their workers, which send sums
of integers, and such sums are the same in any order. So the model is the one that a single machine
would train, to the last bit.

Here two workers run in this process, so that the page can be built anywhere. On a real cluster,
``Client("tcp://scheduler:8786")`` is all that changes.
"""

# %%
# A cluster and data in parts
# ---------------------------
# Twelve sensors with prices: four of them matter, and one of these is expensive.

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
from distributed import Client, LocalCluster

from greedymiser import MiserRegressor

cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0")
client = Client(cluster)

rng = np.random.default_rng(0)
X = rng.standard_normal((20_000, 12))
y = X[:, 0] + 0.8 * X[:, 1] * (X[:, 2] > 0) + 0.3 * X[:, 3] + 0.3 * rng.standard_normal(20_000)
prices = np.array([5.0, 1, 1, 20, *[1] * 8])
X_parts, y_parts = da.from_array(X, chunks=(4000, 12)), da.from_array(y, chunks=4000)
print(X_parts.numblocks[0], "parts of", X_parts.chunks[0][0], "rows")

# %%
# The same fit, twice
# -------------------
# Early stopping would draw validation rows at random, and not the same ones on a cluster as on one
# machine. Without it, or with validation data of your own, the model does not depend on where rows
# are.

settings = {"costs": prices, "tradeoff": 2e-3, "max_iter": 40, "early_stopping": False}
spread = MiserRegressor(**settings).fit(X_parts, y_parts)
alone = MiserRegressor(**settings).fit(X, y)
same = spread.ensemble_.nodes.tobytes() == alone.ensemble_.nodes.tobytes()
print("the same bits:", same)
print(spread.receipt())

# %%
# Predictions for a Dask collection are a Dask collection, computed when they are asked for.

predicted = spread.predict(X_parts)
print(type(predicted).__module__, predicted.numblocks)
error = float(((predicted - y_parts) ** 2).mean().compute())
print(f"mean squared error {error:.3f} for a cost of {spread.cost_:g}")

# %%
# The picture
# -----------
# The error of both models after each round: the two lines coincide.

figure, ax = plt.subplots(figsize=(6, 4))
for name, model, width in (("two workers", spread, 6), ("one machine", alone, 2)):
    ax.plot(-model.train_score_, linewidth=width, alpha=0.7, label=name)
ax.set(xlabel="round", ylabel="half of the mean squared error")
ax.set_title("The same model from a cluster")
ax.grid(alpha=0.3)
ax.legend()
figure.tight_layout()
plt.show()

client.close()
cluster.close()
