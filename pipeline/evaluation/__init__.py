"""Evaluation of models: recalls and their intervals, annotated pairs, attention."""
