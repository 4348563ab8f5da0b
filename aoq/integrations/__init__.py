"""Tables, losses and batches inside other people's trainers, a package each; each needs its trainer installed."""
