"""One script per question; ``make bench`` runs them all and prints ratios against the peers."""
