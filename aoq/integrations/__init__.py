"""Tables, losses and batches for other people's trainers, one module or package each; the trainer must be installed."""
