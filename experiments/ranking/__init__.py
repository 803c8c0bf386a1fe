"""Ranking documents where features have prices: Figure 1 of the paper, and MQ2008."""
