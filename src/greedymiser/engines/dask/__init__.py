"""The engine for many machines: a shard on every worker of a Dask cluster.

``door`` opens it, ``parts`` reads Dask collections, ``stores`` knows which worker has which codes,
``rows`` answers a grower, ``session`` talks to the workers, and ``holding`` is what lives on them.
"""
