"""The `aoq` command: make tables and models, look at them, check them, share them."""

from aoq.pipeline.cli.commands import main as main
