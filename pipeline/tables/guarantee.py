"""The guarantee of a table's lists in words, so that no approximate table passes for an exact one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def describe_guarantee(about: Mapping[str, Any]) -> str:
    """Say of a direction, by the manifest's fields, how its lists were found and what is known of them.

    >>> describe_guarantee({"guarantee": "exact", "certified_share": 1.0})
    'exact, 100.00% certified'
    >>> measured = {"recall": 0.962, "recall_interval": [0.9416, 0.9755], "recall_anchors": 512}
    >>> describe_guarantee({"guarantee": "approximate", **measured, "certified_share": 0.0})
    'approximate, 96.20% of the true lists (95% interval 94.16% to 97.55%, 512 anchors), not certified'
    """
    said = f"{_collapse(about)}{about.get('guarantee', 'unknown')}"
    if "recall" in about:
        said += f", {about['recall']:.2%} of the true lists ({_sample(about)})"
    if "certified_share" in about:
        share = about["certified_share"]
        said += f", {share:.2%} certified" if share else ", not certified"
    if index := about.get("index"):
        said += f"; index {' '.join(filter(None, (index['factory'], index['parameters'])))}"
    return said


def _collapse(about: Mapping[str, Any]) -> str:
    share = about.get("collapsed_share", 0.0)
    return f"all scores of {share:.0%} of the anchors lie within 1e-6: the teacher has collapsed; " if share else ""


def _sample(about: Mapping[str, Any]) -> str:
    sampled = f"{about['recall_anchors']} anchors"
    if "recall_interval" not in about:  # of a shortlist, or a table from before
        return sampled
    low, high = about["recall_interval"]
    return f"95% interval {low:.2%} to {high:.2%}, {sampled}"
