"""Photographs and captions as a dataset folder: sources, extractors, splits."""
