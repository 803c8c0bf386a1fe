"""
Ranking under a latency budget
==============================

A search engine has a few milliseconds to score a document. Features from the index are there at
once; the text has to be fetched, the click log is another service, and a neural network that reads
the text is slow. Which features should a ranker use, if it has 5, 15 or 60 milliseconds?

The documents here are invented, so that this page can be built anywhere. `MQ2008 <../mq2008.html>`_
has results on real ones.
"""

# %%
# Documents, and how long their features take
# -------------------------------------------
# The relevance of a document is a sum of three parts: how well its words match, how popular it is,
# and what only a careful reader notices. Each feature is one of these parts plus noise; slow
# features have less noise.

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
# Queries are not divided: 180 are for training, 90 for validation and 90 for the test.

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
# So far the budget holds for every document. With early exits, documents that cannot reach the top
# of their query leave before the expensive features are fetched. For that, the first trees must not
# use them: the first 20 rounds have a budget of 6 ms, which is too little for the network.

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
# One line has a limit for every document: the test score of the model that was chosen for each
# budget. With early exits, cost is the mean over documents.

figure, ax = plt.subplots(figsize=(6, 4))
budgets = range(4, 61, 4)
scores = [curve.best_row(budget)["test_score"] for budget in budgets]
ax.plot(budgets, scores, "o-", markersize=4, label="same for all documents")
ax.plot(sweep["cost"], sweep["score"], "o--", label="with early exits (mean)")
ax.set(xlabel="milliseconds per document", ylabel="NDCG@5 (test)", ylim=(0.5, 1.0))
ax.set_title("Ranking quality for each latency budget")
ax.grid(alpha=0.3)
ax.legend(loc="lower right")
figure.tight_layout()
plt.show()
