"""SGR and SAF against numbers of SGRAF's and NCR's official codes: scores, what they are made of, and gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from aoq.models.base import Code
from aoq.models.sgraf import SAF, SGR


@pytest.mark.parametrize(("name", "kind"), [("sgraf_sgr", SGR), ("sgraf_saf", SAF), ("ncr_sgraf_unsorted", SGR)])
def test_scores_and_what_they_are_made_of(golden, official, name, kind):
    case = golden(name)
    sgraf = official(case, case.meta["config"]["opt"])
    assert type(sgraf.model) is kind
    case.check("out/inter/img_global", sgraf.images.pooled)
    case.check("out/inter/cap_global", sgraf.captions.pooled)
    case.check("out/scores", sgraf.matrix())
    summaries = []
    sgraf.model.score.register_forward_pre_hook(lambda _module, inputs: summaries.append(inputs[0]))
    case.check("out/scores", sgraf.model.pair_similarity(*sgraf.pairs()).view_as(case["out/scores"]))
    case.check("out/inter/sim_vec", summaries[0].view_as(case["out/inter/sim_vec"]))


@pytest.mark.parametrize("name", ["sgraf_sgr", "sgraf_saf", "ncr_sgraf_unsorted"])
def test_loss_and_gradients(golden, official, triplet, name):
    """Compare the first square of the matrix in eval mode; gradients pass through the pooled vectors too."""
    case = golden(name)
    sgraf = official(case, case.meta["config"]["opt"])
    model, mask = sgraf.model, sgraf.captions.mask
    regions, words = (code.vectors.detach().requires_grad_() for code in (sgraf.images, sgraf.captions))
    images = Code(regions, None, model.pool_image(regions, None))
    captions = Code(words, mask, model.pool_caption(words, mask))
    square = min(len(images), len(captions))
    loss = triplet(model.similarity(images, captions)[:square, :square], hardest=True)
    case.check("out/loss", loss)
    loss.backward()
    case.check("out/grad/img_emb", regions.grad)
    missing = case["out/grad/cap_emb"].shape[1] - words.shape[1]
    case.check("out/grad/cap_emb", F.pad(words.grad, (0, 0, 0, missing)))
    assert torch.equal(words.grad[~mask], torch.zeros_like(words.grad[~mask]))
