"""Approximate searches: an index of FAISS proposes candidates, their scores are exact, and recall is measured."""
