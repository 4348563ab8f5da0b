"""NCR: two networks, each taught by the pairs that the other selects as clean (Huang et al., NeurIPS 2021)."""
