"""Finished models, without anything that trains: trees, prediction, links, exit rules, bills."""
