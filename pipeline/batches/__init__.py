"""Batches made of a table: pairs that are each other's hard negatives stand in one batch."""
