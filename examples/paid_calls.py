"""
Paid calls, only where they are needed
======================================

A shop wants to know whether an order is fraud. The fields of the order are free, an address check
costs 2 cents, a device fingerprint 5 and a report of a bureau 60. Most orders are easy to decide:
for those, the shop should not pay for a report.

The model is trained on a table of past orders. In service it gets one order at a time, and calls
the services itself, one after another, until it is sure.
"""

# %%
# Past orders
# -----------
# They are invented: fraud depends on three hidden quantities, and each service sees some of them.

import asyncio

import matplotlib.pyplot as plt
import numpy as np

from greedymiser import CostModel, EarlyExitClassifier, MiserClassifier
from greedymiser.on_demand import OnDemandPredictor, Sources, build_matrix

rng = np.random.default_rng(0)
n = 3000
stolen, mule, bot = rng.standard_normal((3, n))
orders = [
    {"amount": amount, "hour": hour, "stolen": a, "mule": b, "bot": c}
    for amount, hour, a, b, c in zip(
        np.exp(rng.normal(4, 1, n) + 0.6 * stolen),
        (rng.normal(15, 4, n) + 5 * bot) % 24,
        stolen + 0.3 * rng.standard_normal(n),
        mule + 0.5 * rng.standard_normal(n),
        bot + 0.3 * rng.standard_normal(n),
        strict=True,
    )
]
fraud = stolen + 0.8 * mule + bot + 0.3 * rng.standard_normal(n) > 1.5

# %%
# Where columns come from
# -----------------------
# There is a function for each service. The names of its parameters say what it needs: the order
# itself, or the result of another function. The report is fetched once, and two columns are read
# from it. The services are coroutines here, so that calls for many orders run concurrently.

sources = Sources(raw="order")


@sources.columns("amount", "hour")
def form(order):
    return order["amount"], order["hour"]


@sources.columns("address_risk")
async def address_check(order):
    await asyncio.sleep(0.0005)
    return order["mule"]


@sources.columns("device_risk")
async def fingerprint(order):
    await asyncio.sleep(0.0005)
    return order["bot"]


@sources.intermediate
async def report(order):
    await asyncio.sleep(0.001)
    return {"reported": order["stolen"], "links": order["stolen"] + order["mule"]}


@sources.columns("reported")
def reported(report):
    return report["reported"]


@sources.columns("links")
def links(report):
    return report["links"]


cents = {"form": 0.0, "address_check": 2.0, "fingerprint": 5.0, "report": 60.0}
costs = CostModel.from_resources(cents | {"reported": 0.0, "links": 0.0}, sources.needs())
print(sources)

# %%
# A model that uses the expensive report last
# -------------------------------------------
# The first 30 rounds have a budget that is too small for a report; the next 30 may use it. After
# some of the rounds there is an exit, where orders leave whose answer is clear.

X = build_matrix(sources, orders[:2000])
model = MiserClassifier(
    costs=costs, budget=7.0, max_iter=30, learning_rate=0.2, max_depth=3, warm_start=True
)
model.fit(X[:1400], fraud[:1400])
model.set_params(budget=67.0, max_iter=60).fit(X[:1400], fraud[:1400])
print(model.receipt())

# %%
# An order may cost 25 cents on average. The exit rule is chosen on orders that were not used in
# training.

thrifty = EarlyExitClassifier(model, budget=25.0).fit(X[1400:], fraud[1400:2000])
print(f"orders leave once the model is surer than {thrifty.threshold_:.3f}")

# %%
# New orders
# ----------
# No matrix is built here. The predictor calls the services whose columns the next trees use, each
# at most once per order.

with OnDemandPredictor(thrifty, sources, concurrency=100, on_error="missing") as served:
    labels, receipts = served.predict(orders[2000:], return_receipts=True)
print(receipts[:4])
print(f"accuracy {np.mean(labels == fraud[2000:]):.3f}, {receipts.costs.mean():.1f} cents an order")

# %%
# The picture
# -----------
# For how many orders was each service called, and what accuracy does each mean cost buy?

called = [np.mean([name in receipt.fetched for receipt in receipts]) for name in cents]
X_new = build_matrix(sources, orders[2000:])
curve = thrifty.curve(X_new, fraud[2000:], thresholds=15)
figure, ax = plt.subplots(figsize=(6, 4))
ax.barh([f"{name} ({price:g} ¢)" for name, price in cents.items()], called, color="#0072B2")
ax.invert_yaxis()
ax.set(xlim=(0, 1), xlabel="share of orders", title="Which orders paid for which service")
figure.tight_layout()

figure, ax = plt.subplots(figsize=(6, 4))
ax.plot(curve["cost"], curve["score"], "o-", color="#D55E00")
ax.axvline(model.cost_, color="gray", linestyle=":", label="all services for every order")
ax.set(xlabel="mean cost of an order (cents)", ylabel="accuracy (test)")
ax.set_title("Accuracy for each mean cost")
ax.legend(loc="lower right")
figure.tight_layout()
plt.show()
