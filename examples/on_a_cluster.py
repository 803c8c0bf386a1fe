"""
Rows that are spread over a cluster
===================================

A data set that no machine holds lies in parts on the workers of a Dask cluster. Estimators take
Dask arrays and data frames as they are: rows stay where they lie, workers send integers, and
integers add up to the same sums in any order. So the model is that of one machine, to the last bit.

Here two workers live in this process, so that the page can be built anywhere. On a real cluster,
``Client("tcp://scheduler:8786")`` is all that changes.
"""

# %%
# A cluster and data in parts
# ---------------------------
# Sensors with prices: four of twelve tell something, and one of these is expensive.

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
# Early stopping would set rows aside by lot, and not the same ones here and there; without it, or
# with validation data of your own, nothing depends on where rows lie.

settings = {"costs": prices, "tradeoff": 2e-3, "max_iter": 40, "early_stopping": False}
spread = MiserRegressor(**settings).fit(X_parts, y_parts)
alone = MiserRegressor(**settings).fit(X, y)
same = spread.ensemble_.nodes.tobytes() == alone.ensemble_.nodes.tobytes()
print("the same bits:", same)
print(spread.receipt())

# %%
# Predictions of collections are collections: nothing is computed until somebody asks.

predicted = spread.predict(X_parts)
print(type(predicted).__module__, predicted.numblocks)
error = float(((predicted - y_parts) ** 2).mean().compute())
print(f"mean squared error {error:.3f} for a cost of {spread.cost_:g}")

# %%
# The picture
# -----------
# The error after each round, of both. One line covers the other.

figure, ax = plt.subplots(figsize=(8, 4))
for name, model, width in (("spread over two workers", spread, 6), ("on one machine", alone, 2)):
    ax.plot(-model.train_score_, linewidth=width, alpha=0.7, label=name)
ax.set(xlabel="round", ylabel="half of the mean squared error")
ax.grid(alpha=0.3)
ax.legend()
figure.tight_layout()
plt.show()

client.close()
cluster.close()
