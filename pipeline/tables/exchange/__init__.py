"""Negative tables in other trainers' formats, one file a family, and other programs' lists as tables."""
