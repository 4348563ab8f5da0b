"""Tables, losses and batches for other people's trainers, one package per trainer, which must be installed."""
