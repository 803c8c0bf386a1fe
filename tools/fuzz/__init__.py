"""Damage files in many ways, and see that reading refuses them or gives something that works.

mutations    what can be done to any bytes, and to any text
models       model files
costs        cost files
tables       data: CSV, Parquet, LETOR/SVMlight
running      in child processes, under limits of memory and time
"""
