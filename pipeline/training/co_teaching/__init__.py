"""NCR: two networks, each taught by what the other holds clean (Huang et al., NeurIPS 2021)."""
