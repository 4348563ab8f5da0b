"""`aoq audit`: what is wrong with a negative table."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command()
@click.argument("table", type=click.Path(path_type=Path))
def audit(table: Path) -> None:
    """Check the negative table in the folder TABLE (runs/EXPERIMENT/hard_negatives/table); exit code 1 if it is wrong.

    Ids in range, no own positive, no repeats, order, finite scores, padding, lengths, the two directions against each
    other, certificates, and footer, manifest and content against each other.
    """
    from pipeline.mining.audit import audit as find_all

    findings = find_all(table)
    for finding in findings:
        click.echo(f"error: {finding}")
    if findings:
        click.echo(f"{len(findings)} checks fail; mine the table again", err=True)
        sys.exit(1)
    click.echo(f"{table} is sound")
