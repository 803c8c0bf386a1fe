"""
The same model from a GPU
=========================

``engine="cuda"`` trains on an NVIDIA GPU, and gives the same model as the CPU, to the last bit.
Without a GPU this example says so, and trains on the CPU only. The times in the picture were
measured on an H200 and on 16 cores of a CPU (`how <../benchmarks.html>`_).
"""

# %%
# Is there a GPU?
# ---------------

import time

import matplotlib.pyplot as plt
import numpy as np

from greedymiser import MiserRegressor

rng = np.random.default_rng(0)
X = rng.standard_normal((20_000, 50)).astype(np.float32)
y = X[:, 0] + X[:, 1] * (X[:, 2] > 0) + 0.3 * rng.standard_normal(20_000)
# With so many rows some are set aside for early stopping; the seed says which.
settings = {"costs": np.arange(50.0), "tradeoff": 1e-4, "max_iter": 30, "random_state": 0}

try:
    from numba import cuda

    has_gpu = cuda.is_available()
except ImportError:
    has_gpu = False
print("there is a GPU" if has_gpu else "there is no GPU here: only the CPU is used")

# %%
# Two fits, one model
# -------------------
# Trees and leaf values are compared bit by bit. The first fit on a GPU compiles for some seconds.

models = {}
for engine in ["cpu", "cuda"] if has_gpu else ["cpu"]:
    MiserRegressor(engine=engine, **settings | {"max_iter": 1}).fit(X, y)
    start = time.perf_counter()
    models[engine] = MiserRegressor(engine=engine, **settings).fit(X, y)
    print(f"{engine}: {time.perf_counter() - start:.2f} s, cost {models[engine].cost_:g}")
if has_gpu:
    equal = models["cpu"].ensemble_.nodes.tobytes() == models["cuda"].ensemble_.nodes.tobytes()
    print("the same bits:", equal)

# %%
# When a GPU is faster
# --------------------
# Milliseconds for a tree of depth 4, by the size of the data (rows times features).

shapes = [(1_000, 10), (10_000, 20), (30_000, 30), (100_000, 30), (300_000, 30), (50_000, 300)]
shapes += [(473_134, 519), (10_000_000, 100)]
cells = [rows * columns for rows, columns in shapes]
on_cpu = [0.3, 0.9, 1.3, 1.7, 3.4, 5.3, 37.6, 177]
on_gpu = [0.61, 1.10, 1.17, 0.58, 0.66, 0.75, 1.31, 4.22]

figure, ax = plt.subplots(figsize=(6, 4))
ax.loglog(cells, on_cpu, "o-", label="16 cores of an Intel Xeon")
ax.loglog(cells, on_gpu, "s-", label="NVIDIA H200")
ax.set(xlabel="rows times features", ylabel="milliseconds per tree")
ax.set_title("Training time on a CPU and a GPU")
ax.grid(alpha=0.3)
ax.legend()
figure.tight_layout()
plt.show()
