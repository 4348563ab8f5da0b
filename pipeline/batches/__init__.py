"""Mined batches: pairs that are each other's hard negatives share a batch."""
