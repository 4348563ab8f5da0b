"""Negative tables in other trainers' formats, one file per family, and other programs' lists as tables."""
