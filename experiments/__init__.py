"""Evidence: the experiments of the paper and of this library, and what they found.

``python -m experiments NAME`` runs one of the paper's, from raw data to tables and figures. Each
has ``run(data, workspace, ...)``, which returns ``Results``. Nothing is imported here, so that an
experiment asks only for the libraries that it needs itself.
"""
