"""Loops over rows and bins for a GPU, and what the host writes for them."""
