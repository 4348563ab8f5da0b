"""Stages: each file says what shapes a stage's key, which artefacts it reads, and how it is made."""
