"""Trainings: the loop, trainers, steps, batches, samplers, checkpoints and metrics."""
