"""Sections of an experiment's file and of a study's: what may be set, and what fits together."""
