"""Losses, search, tables, training and commands: everything but the models and the Luigi tasks."""

if __name__ == "pipeline":
    raise ImportError(
        "import aoq.pipeline, not pipeline: a second copy of each class would be no instance of the first."
    )
