"""Negative tables in other trainers' formats, and other programs' lists as tables."""
