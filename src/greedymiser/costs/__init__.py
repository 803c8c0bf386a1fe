"""What things cost: the cost model, prices as users write them, cost files."""
