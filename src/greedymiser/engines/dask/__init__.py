"""The engine for many machines: a shard on every worker of a Dask cluster.

``engine`` opens it, ``partitions`` reads Dask collections, ``stores`` knows which worker has which
codes, ``rows`` answers a grower, ``foresight`` knows what it will ask next, ``session`` talks to
the workers, ``worker`` is what lives on them, ``packed_histograms`` is what they send each other,
and ``replay`` what those are told that were not there.
"""
