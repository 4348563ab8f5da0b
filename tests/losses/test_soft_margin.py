"""NCR's losses and labels against the official code, and against loops."""

import pytest
import torch

from aoq.pipeline.losses.soft_margin import (
    SOFT_MARGINS,
    mean_triplet,
    own_margins,
    pair_losses,
    predicted_labels,
    refined_labels,
    row_margins,
    soft_margins,
    soft_triplet,
    violations,
)
from tests.losses.test_aoq import similarities


def official_margins(labels, margin, kind):
    """(B,) broadcasts over columns in the released code, (B, 1) over rows, for both directions."""
    return row_margins(soft_margins(labels if labels.ndim == 2 else labels[None, :], margin=margin, kind=kind))


@pytest.fixture
def case(golden):
    return golden("ncr_loss")


def variants(case):
    return [key.removesuffix("/value") for key in case.keys("out/train_") if key.endswith("/value")]


def test_equals_the_official_losses(case):
    margin = case.meta["config"]["margin"]
    for variant in ["out/warmup", *variants(case)]:
        matrix = case["in/scores"].clone().requires_grad_()
        pairs = similarities(matrix)
        words = variant.split("/")[1].split("_")
        if words[-1] in ("warmup", "nolabel"):
            margins = own_margins(torch.full((len(matrix),), margin))
        else:
            margins = official_margins(case[f"in/labels_{words[-1]}"], margin, words[2])
        if "hard" in words:
            loss = soft_triplet(pairs, margins=margins).total
        else:
            loss = sum(
                difference.clamp(min=0).masked_fill(is_positive, 0.0).mean(dim=1).sum()
                for difference, is_positive in violations(pairs, margins)
            )
        case.check(f"{variant}/value", loss)
        loss.backward()
        case.check(f"{variant}/grad/scores", matrix.grad)
    assert len(variants(case)) > 2 * len(SOFT_MARGINS)


def test_equals_the_official_losses_of_pairs_and_predictions(case):
    margin, pairs = case.meta["config"]["margin"], similarities(case["in/scores"])
    case.check("out/eval_loss/value", pair_losses(pairs, margin=margin))
    case.check("out/warmup/value", mean_triplet(pairs, margin=margin).total)
    case.check("out/predict/clamped", predicted_labels(pairs, margin=margin))
    assert torch.equal(case["out/predict/value"].clamp(0, 1), case["out/predict/clamped"])


def test_equals_the_official_rectification(golden):
    case = golden("ncr_rectify")
    config, probabilities = case.meta["config"], case["in/prob"].squeeze(1)
    pairs = {name: similarities(case[f"in/scores_{name}"].clone().requires_grad_()) for name in ("l", "u1", "u2")}
    predicted = {name: predicted_labels(one, margin=config["margin"]).detach() for name, one in pairs.items()}
    for name, labels in predicted.items():
        case.check(f"out/pred_{name}", labels)
    case.check("out/targets_l_elementwise", refined_labels(probabilities, predicted["l"]))
    labels = {
        "l_official": refined_labels(probabilities[:, None], predicted["l"]),
        "u": ((predicted["u1"] + predicted["u2"]) / 2)[:, None],
    }
    for name, one in labels.items():
        case.check(f"out/targets_{name}", one)
        of = pairs["l" if name == "l_official" else "u1"]
        margins = official_margins(one, config["margin"], config["soft_margin"])
        loss = soft_triplet(of, margins=margins).total
        case.check(f"out/loss_{name}", loss)
        loss.backward()
        case.check(f"out/grad_{name}", of.matrix.grad)


def test_a_batch_that_matches_nowhere_has_labels_of_zero():
    matrix = torch.full((4, 4), 5.0).fill_diagonal_(0.0)
    assert predicted_labels(similarities(matrix), margin=0.2).tolist() == [0.0] * 4
