"""Screens: a table's negatives judged by rules, as a view beside the table."""
