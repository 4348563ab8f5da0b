"""Hard negatives for image–text retrieval."""
