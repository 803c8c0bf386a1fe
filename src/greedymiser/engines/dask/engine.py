"""Opening the engine on the user's cluster, and the errors where there is none."""

from __future__ import annotations

from typing import Any

from distributed import Client, get_client

from greedymiser._core.threads import Threads
from greedymiser.data.tables import is_lazy
from greedymiser.engines.dask.collections import gathered, parts_of
from greedymiser.engines.dask.partitions import BinnedParts
from greedymiser.engines.dask.rows import DaskRows
from greedymiser.engines.dask.session import Session
from greedymiser.engines.dask.stores import SentStore
from greedymiser.engines.interface import Sample


class DaskUnavailableError(RuntimeError):
    """There is no cluster to train on."""


def open_engine(threads: Threads) -> DaskEngine:
    """An engine on the cluster of the client at hand; it ends with ``threads``."""
    engine = DaskEngine(client_at_hand())
    threads.at_exit(engine.close)
    return engine


def client_at_hand() -> Client:
    """The client that Dask would use here."""
    try:
        client = get_client()
    except ValueError:
        raise DaskUnavailableError(
            "Dask collections and engine='dask' need a client, and there is none; two lines make "
            "one:\n    from dask.distributed import Client, LocalCluster\n"
            "    client = Client(LocalCluster())  # or Client('tcp://address-of-scheduler:8786')"
        ) from None
    if client.asynchronous:
        raise DaskUnavailableError("the client at hand is asynchronous, and fit waits for answers")
    return client


class DaskEngine:
    """Places rows on the workers of a cluster."""

    def __init__(self, client: Client):
        self.session = Session(client)

    def place(self, sample: Sample) -> DaskRows:
        binned = sample.binned
        if isinstance(binned, BinnedParts):
            return DaskRows(binned.store, sample, binned.chosen)
        return DaskRows(SentStore(self.session, binned), sample, None)

    def take(self, X: Any, *others: Any) -> tuple[Any, ...]:
        """X as partitions on the cluster, and the others brought here: a number per row each."""
        client = self.session.client
        here = [gathered(client, other) if is_lazy(other) else other for other in others]
        return parts_of(self.session, X) if is_lazy(X) else X, *here

    def close(self) -> None:
        """Leave nothing behind."""
        self.session.close()
