"""The only loops over rows: on the cores of this machine, on a GPU, on a cluster.

``interface`` says what an engine is asked and what it answers; ``cpu``, ``cuda`` and ``dask`` have
the same names for the same things: ``engine``, ``rows``, ``histograms``, ``marks``, ``kernels``.
"""
