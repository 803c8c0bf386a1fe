"""Algorithm 1: boosting, the grower, splitting, accounts, and what prepares the data for it."""
