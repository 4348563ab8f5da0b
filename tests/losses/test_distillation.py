"""Distillation losses against torch's divergence and loops in float64: values and gradients."""

import math

import jaxtyping
import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError
from torch.distributions import Categorical, kl_divergence

from aoq.pipeline.losses.distillation import batch_distillation, list_distillation

SIZE = 5
NONE = -math.inf


def scores(seed, *shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def divergence(given, logits):
    return kl_divergence(Categorical(**given), Categorical(logits=logits)).sum()


def batch_definition(matrix, teachers, temperature, own, average):
    total = 0
    for ours, theirs in ((matrix, teachers), (matrix.T, teachers.mT)):
        if average == "scores":
            targets = {"logits": theirs.mean(0) / temperature}
        else:
            targets = {"probs": (theirs / temperature).softmax(-1).mean(0)}
        total = total + divergence(targets, ours / own)
    return total


@pytest.mark.parametrize("average", ["scores", "softmax"])
@pytest.mark.parametrize("own", [None, 0.3])
def test_a_batch_equals_its_definition(average, own):
    slow, fast = (scores(0, SIZE, SIZE).requires_grad_() for _ in range(2))
    teachers = scores(1, 3, SIZE, SIZE)
    expected = batch_definition(slow, teachers, 0.1, own or 0.1, average)
    expected.backward()
    value = batch_distillation(fast, teachers, temperature=0.1, student_temperature=own, average=average)
    value.backward()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(fast.grad, slow.grad)


def list_definition(ours, theirs, kind, temperature, own):
    total = 0
    for similarities, teacher in zip(ours, theirs, strict=True):
        listed = [n for n in range(1, len(teacher)) if teacher[n] > NONE]
        if kind == "margin_mse":
            errors = [(similarities[0] - similarities[n] - teacher[0] + teacher[n]) ** 2 for n in listed]
            total = total + sum(errors) / max(1, len(listed))
        elif kind == "ranking":
            for n in listed:
                below = sum(torch.exp(similarities[m] / own) for m in listed if teacher[m] <= teacher[n])
                total = total - torch.log(torch.exp(similarities[n] / own) / below) / len(listed)
        else:
            both = [0, *listed]
            total = total + divergence({"logits": teacher[both] / temperature}, similarities[both] / own)
    return total


@pytest.mark.parametrize("kind", ["kl", "margin_mse", "ranking"])
@pytest.mark.parametrize("own", [None, 0.3])
def test_lists_equal_their_definition(kind, own):
    slow, fast = (scores(2, 6, SIZE).requires_grad_() for _ in range(2))
    teacher = scores(3, 6, SIZE)
    teacher[1, 2], teacher[2, 3:], teacher[3, 1:] = NONE, NONE, NONE
    expected = list_definition(slow, teacher, kind, 0.1, own or 0.1)
    expected.backward()
    value = list_distillation(fast, teacher, kind=kind, temperature=0.1, student_temperature=own)
    value.backward()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(fast.grad, slow.grad.nan_to_num())
    padded = list_distillation(fast, teacher.where(teacher > NONE, torch.nan), kind=kind, temperature=0.1)
    torch.testing.assert_close(padded, list_distillation(fast, teacher, kind=kind, temperature=0.1))


@pytest.mark.parametrize("function", [batch_distillation, list_distillation])
@pytest.mark.parametrize("option", ["temperature", "student_temperature"])
def test_temperatures_are_above_0(function, option):
    with pytest.raises(ValueError, match=r"must be above 0 and finite; got 0\.0"):
        function(torch.zeros(3, 3), torch.zeros(3, 3), **{option: 0.0})


@pytest.mark.parametrize("function", [batch_distillation, list_distillation])
def test_lists_and_arrays_are_refused(function, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as it is for users
    for scores, kind in (([[0.0]], "list"), (np.zeros((1, 1)), "ndarray")):
        with pytest.raises(TypeError, match=f"similarities is a {kind}; give a tensor, such as torch.as_tensor"):
            function(scores, torch.zeros(1, 1))
        with pytest.raises(TypeError, match=f"teacher_scores is a {kind}; give a tensor"):
            function(torch.zeros(1, 1), scores)
    with pytest.raises(ValueError, match=r"teacher_scores are \(1, 3\), but similarities \(3, 3\); give"):
        function(torch.zeros(3, 3), torch.zeros(1, 3))


@pytest.mark.parametrize(("function", "option"), [(batch_distillation, "average"), (list_distillation, "kind")])
def test_other_words_are_refused(function, option):
    with pytest.raises((ValueError, TypeCheckError), match="nonsense"):
        function(torch.zeros(3, 3), torch.zeros(3, 3), **{option: "nonsense"})
