"""What is compiled beforehand is all that will be needed."""

import json
import os
import subprocess
import sys

import pytest

# In a fresh interpreter, since other tests have compiled things here.
PROBE = """if True:
    import json
    import numpy as np
    from dataclasses import replace
    from greedymiser._core.compiling import KERNELS
    from greedymiser.warm import warm_up

    folders = warm_up()
    assert folders
    # Those that are only called by other kernels come with these from the cache.
    from greedymiser._core.threads import share
    inner = {name for kernel in KERNELS for name in kernel.py_func.__code__.co_names}
    inner |= set(share.__code__.co_names)
    outer = [kernel for kernel in KERNELS if kernel.__name__ not in inner]
    idle = [kernel.__name__ for kernel in outer if not kernel.signatures]
    before = [(kernel, len(kernel.signatures)) for kernel in KERNELS]

    from greedymiser import *
    from greedymiser.datasets import load_thyroid
    from scipy import sparse

    data = load_thyroid()
    X, y, X_test = data.X_train[:1500], data.y_train[:1500], data.X_test
    qid = np.arange(len(X)) // 11
    few = dict(costs=data.costs, max_iter=12)
    models = [
        MiserClassifier(**few).fit(X, y),
        MiserClassifier(**few).fit(sparse.csr_matrix(X), y == 3),
        MiserRegressor(**few, step="gradient").fit(np.asfortranarray(X), y),
        MiserRegressor(**few, loss="absolute_error", max_depth=8).fit(X, y, y / 2),
        MiserRegressor(**few, loss="gamma", max_depth=12, min_samples_leaf=1).fit(X, y),
        MiserRegressor(**few, subsample=0.5, max_features=3).fit(X, y, y / 2),
        MiserClassifier(**few, charge="row").fit(X, y, y / 2, X_val=X, y_val=y),
        MiserRegressor(**few, charge="row", row_budget=30.0, subsample=0.5).fit(X, y),
        MiserRanker(**few, subsample=0.5).fit(X, y, qid=qid),
        MiserRanker(**few).fit(X, y, qid=qid),
        MiserRanker(**few, loss="squared_error", early_stopping=True).fit(X, y, qid=qid),
    ]
    models += [
        EarlyExitClassifier(models[0], threshold=0.9, every=3).fit(X, y),
        EarlyExitRanker(models[-2], threshold=0.1, every=3).fit(X, y, qid=qid),
    ]
    for model in models:
        for rows in (X_test, X_test[:1], X_test[::2], X_test.astype(np.float32)):
            model.predict(rows)
        as_predictor(model).predict(X_test)
        by_row = replace(as_predictor(model), charge="row")
        by_row.prediction_costs(X_test)
        by_row.protocol(X_test.astype(np.float32))
    for _ in models[0].staged_predict_proba(X_test):
        pass
    new = [kernel.__name__ for kernel, n in before if len(kernel.signatures) > n]

    # What make kernels would write is in the archive.
    from greedymiser._core.compiling import KernelCache
    from greedymiser._core.precompiled import ARCHIVE, kernel_key
    cached = [kernel for kernel in KERNELS if isinstance(kernel._cache, KernelCache)]
    keys = {kernel_key(kernel.py_func, types) for kernel in cached for types in kernel.overloads}
    print(json.dumps({"idle": idle, "new": new, "missing": sorted(keys - ARCHIVE.digests.keys())}))
"""


@pytest.mark.subprocess
@pytest.mark.parametrize("threads", ["1", "2"])
def test_everything_is_compiled_beforehand(threads):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROBE],
        env={**os.environ, "NUMBA_NUM_THREADS": threads},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"idle": [], "new": [], "missing": []}


@pytest.mark.subprocess
def test_serving_alone_leaves_out_what_trains():
    code = (
        "import sys; from greedymiser.warm import warm_up; warm_up(training=False);"
        "print('sklearn' in sys.modules, 'greedymiser.engines' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
