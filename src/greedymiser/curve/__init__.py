"""Which models to train for a curve of budgets, and which of them to choose."""
