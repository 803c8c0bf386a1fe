"""What things cost: the cost model, prices as users write them, cost files."""

from greedymiser.costs.cost_model import CostModel, Ledger, Purchase, Receipt
from greedymiser.costs.files import (
    CostFile,
    CostFileError,
    read_costs,
    template,
    write_costs,
    write_template,
)

__all__ = [
    "CostFile",
    "CostFileError",
    "CostModel",
    "Ledger",
    "Purchase",
    "Receipt",
    "read_costs",
    "template",
    "write_costs",
    "write_template",
]
