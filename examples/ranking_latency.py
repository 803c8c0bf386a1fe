"""
Ranking under a latency budget
==============================

A search engine has some milliseconds to score a document. What the index knows is there already;
the text has to be fetched, the click log is another service, and a neural reader is slow. Which
of it should a ranker look at, if it has 5, 15 or 60 milliseconds?

The documents here are made up, so that this page can be built anywhere. `MQ2008 <../mq2008.html>`_
does the same with real ones.
"""

# %%
# Documents, and how long it takes to look at them
# ------------------------------------------------
# Relevance has three parts: how well the words match, how fresh and how liked a page is, and what
# only a careful reader would notice. Features show parts of it through noise, the less of it the
# longer they take.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from greedymiser import CostModel, EarlyExitRanker, MiserRanker, tradeoff_curve

rng = np.random.default_rng(0)
n_queries, per_query = 360, 20
n = n_queries * per_query
qid = np.repeat(np.arange(n_queries), per_query)
words, liked, careful = rng.standard_normal((3, n))
relevance = words + 0.7 * liked + 0.7 * careful + 0.3 * rng.standard_normal(n)
y = np.digitize(relevance, [0.5, 1.5, 2.3, 3.0])  # grades 0 to 4


def seen(part, noise):
    return part + noise * rng.standard_normal(n)


X = pd.DataFrame(
    {
        "title_match": seen(words, 1.5),
        "anchor_match": seen(words, 2.0),
        "page_rank": seen(liked, 2.5),
        "body_match": seen(words, 0.7),
        "proximity": seen(words, 0.9),
        "clicks": seen(liked, 0.4),
        "dwell_time": seen(liked, 0.6),
        "reader": seen(words + careful, 0.3),
    }
)
milliseconds = CostModel.from_resources(
    {"index": 0.2, "fetch": 4.0, "parse": 1.5, "log": 9.0, "network": 40.0},
    {
        "title_match": ["index"],
        "anchor_match": ["index"],
        "page_rank": ["index"],
        "body_match": ["fetch"],
        "proximity": ["fetch", "parse"],
        "clicks": ["log"],
        "dwell_time": ["log"],
        "reader": ["fetch", "parse", "network"],
    },
    tree_cost=0.002,
)

# %%
# The curve
# ---------
# Queries are kept whole: 180 to learn from, 90 to choose by and 90 to report.

learn, choose, report = qid < 180, (qid >= 180) & (qid < 270), qid >= 270
curve = tradeoff_curve(
    MiserRanker(costs=milliseconds, max_iter=60),
    X[learn],
    y[learn],
    qid=qid[learn],
    X_val=X[choose],
    y_val=y[choose],
    qid_val=qid[choose],
    X_test=X[report],
    y_test=y[report],
    qid_test=qid[report],
    tradeoffs=4,
    effort=0.25,
    scoring="ndcg@5",
    cost_unit="ms",
)
for budget in (5, 15, 60):
    row = curve.best_row(budget)
    print(
        f"{budget:2} ms: NDCG@5 {row['test_score']:.3f} for {row['cost']:.1f} ms,",
        ", ".join(curve.best(budget=budget).features_used_),
    )

# %%
# Less for most documents
# -----------------------
# A budget holds for every document. With early exits, documents that cannot come to the top leave
# before the expensive features are fetched. For that, the first trees must not need them: they grow
# from the index and the text, and the network is bought later.

ranker = MiserRanker(costs=milliseconds, max_iter=20, budget=6.0, tradeoff=1e-5, warm_start=True)
ranker.fit(X[learn], y[learn], qid=qid[learn])
ranker.set_params(max_iter=60, budget=None).fit(X[learn], y[learn], qid=qid[learn])
early = EarlyExitRanker(ranker, every=20, scoring="ndcg@5").fit(
    X[choose], y[choose], qid=qid[choose]
)
sweep = early.curve(X[report], y[report], qid=qid[report], thresholds=12)
sweep.head()

# %%
# The picture
# -----------
# Budgets for all documents alike, and the mean over documents with early exits.

figure, ax = plt.subplots(figsize=(8, 4.5))
front = curve.pareto()
ax.step(front["cost"], front["test_score"], where="post", label="the same for all documents")
ax.plot(sweep["cost"], sweep["score"], "o--", label="with early exits, on average")
ax.set(xlabel="milliseconds for a document", ylabel="test NDCG@5", ylim=(0.5, 1.0))
ax.grid(alpha=0.3)
ax.legend()
figure.tight_layout()
plt.show()
