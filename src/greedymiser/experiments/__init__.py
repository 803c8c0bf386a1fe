"""The experiments of the paper, one module each: from raw data to tables and figures.

Each has ``run(data, workspace, ...)``, which returns ``Results``. Nothing is imported here, so that
an experiment asks only for the libraries that it needs itself.
"""
