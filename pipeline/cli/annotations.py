"""What an evaluation measured beyond the pairs, on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

RELEVANCE = {"r_precision": "R-P", "map_r": "mAP@R", "r1": "@1", "r5": "@5", "r10": "@10"}


def show_annotations(console: Console, evaluation: Mapping[str, Any], split: str) -> None:
    """Show many right answers, PMRP and agreement with people, as far as an evaluation's manifest has them."""
    if "relevance" in evaluation:
        table = Table(f"{split}, all that is right", box=None, pad_edge=False, header_style="bold")
        for column in RELEVANCE.values():
            table.add_column(column, justify="right")
        for name, by_direction in evaluation["relevance"].items():
            for direction, found in by_direction.items():
                table.add_row(f"{name} {direction}", *(f"{found[metric]:.1f}" for metric in RELEVANCE))
        console.print()
        console.print(table)
    if "plausible" in evaluation:
        found = evaluation["plausible"]
        console.print(f"\nPMRP: i2t {found['i2t_pmrp']:.1f}  t2i {found['t2i_pmrp']:.1f}", highlight=False)
    for name, found in evaluation.get("judgements", {}).items():
        said = f"Spearman {found['spearman']:.1f}  Kendall {found['kendall']:.1f}  ({found['judged']:,} pairs)"
        if found["false_hits"]:
            said += f"; of {found['false_hits']:,} false first images people call {found['right_share']:.0f} % right"
        console.print(f"\n{name}: {said}", highlight=False, soft_wrap=True)
