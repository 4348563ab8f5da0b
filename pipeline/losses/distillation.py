"""Losses by which a student learns how a teacher scores pairs, not only which of them match.

Both are sums over anchors, like the ranking losses beside which they are minimised:

    L = L_ranking + weight * L_distillation
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from aoq.pipeline.losses.similarities import check_temperature

Average = Literal["scores", "softmax"]
ListLoss = Literal["kl", "margin_mse", "ranking"]


def batch_distillation(
    similarities: Float[Tensor, "batch batch"],
    teacher_scores: Float[Tensor, "*teachers batch batch"],
    *,
    temperature: float = 0.05,
    student_temperature: float | None = None,
    average: Average = "scores",
) -> Float[Tensor, ""]:
    """Pull the student's distribution over the batch towards the teachers', with images and then captions as anchors.

        L = sum over anchors a of KL( p_a || q_a ),  p_a = softmax(t_a / tau_t),  q_a = softmax(s_a / tau_s)

    `s_a` and `t_a` are the student's and the teacher's scores of the anchor with every candidate of the batch (Hinton
    et al. 2015, arXiv 1503.02531, without the factor tau^2). The scores of several teachers are averaged, or with
    `average = "softmax"` their p_a. Rows are images and columns captions, in both matrices in the same order.

    >>> same = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    >>> round(float(batch_distillation(same, same)), 6) + 0.0
    0.0
    """
    student_temperature = temperature if student_temperature is None else student_temperature
    _check(similarities, teacher_scores, temperature, student_temperature, average=average)
    teachers = teacher_scores.unsqueeze(0) if teacher_scores.ndim == 2 else teacher_scores
    if average == "scores":
        teachers = teachers.mean(0, keepdim=True)
    total = similarities.new_zeros(())
    for ours, theirs in ((similarities, teachers), (similarities.T, teachers.mT)):
        targets = (theirs / temperature).softmax(-1).mean(0)
        logarithms = (ours / student_temperature).log_softmax(-1)
        total = total + torch.nn.functional.kl_div(logarithms, targets, reduction="sum")
    return total


def list_distillation(
    similarities: Float[Tensor, "anchors candidates"],
    teacher_scores: Float[Tensor, "anchors candidates"],
    *,
    kind: ListLoss = "kl",
    temperature: float = 0.05,
    student_temperature: float | None = None,
) -> Float[Tensor, ""]:
    """Pull the student's scores of each anchor's positive, in column 0, and listed negatives towards the teacher's.

    - `kl`: KL( softmax(t_a / tau_t) || softmax(s_a / tau_s) ) over the list.
    - `margin_mse`: the mean over negatives n of ((s_p - s_n) - (t_p - t_n))^2 (Hofstätter et al. 2020, arXiv
      2010.02666); it has no temperature, and student and teacher must score on one scale.
    - `ranking`: the mean over negatives n of -log( e^(s_n / tau_s) / sum over m of e^(s_m / tau_s) ), where m runs
      over n and the negatives that the teacher ranks below it. It teaches the order of hard negatives alone, as
      contrastive partial ranking distillation does (Chen et al. 2024, arXiv 2407.07479).

    A candidate whose teacher score is -inf or NaN is left out, such as the padding of a short list.

    >>> similarities, teacher = torch.tensor([[0.9, 0.2, 0.4]]), torch.tensor([[0.8, 0.1, -torch.inf]])
    >>> float(list_distillation(similarities, teacher, kind="margin_mse"))
    0.0
    """
    student_temperature = temperature if student_temperature is None else student_temperature
    _check(similarities, teacher_scores, temperature, student_temperature, kind=kind)
    is_listed = teacher_scores > -torch.inf
    teacher_scores = teacher_scores.where(is_listed, -torch.inf)
    negatives = is_listed[:, 1:].sum(1).clamp(min=1)
    if kind == "margin_mse":
        theirs = teacher_scores[:, :1] - teacher_scores[:, 1:].where(is_listed[:, 1:], 0)
        differences = similarities[:, :1] - similarities[:, 1:] - theirs
        return (differences.square().where(is_listed[:, 1:], 0).sum(1) / negatives).sum()
    lowest = torch.finfo(similarities.dtype).min
    logits = (similarities / student_temperature).where(is_listed, lowest)
    if kind == "ranking":
        order = teacher_scores[:, 1:].argsort(dim=1, stable=True)  # rising, so that sums run over those ranked below
        logits, is_listed = logits[:, 1:].gather(1, order), is_listed[:, 1:].gather(1, order)
        return ((logits.logcumsumexp(1) - logits).where(is_listed, 0).sum(1) / negatives).sum()
    targets = (teacher_scores / temperature).softmax(1)
    return torch.nn.functional.kl_div(logits.log_softmax(1), targets, reduction="none").where(is_listed, 0).sum()


def _check(similarities: object, teacher_scores: object, *temperatures: float, **chosen: str) -> None:
    shapes = []
    for name, scores in (("similarities", similarities), ("teacher_scores", teacher_scores)):
        if not isinstance(scores, Tensor):
            raise TypeError(f"{name} is a {type(scores).__name__}; give a tensor, such as torch.as_tensor({name}).")
        shapes.append(tuple(scores.shape))
    if shapes[0] != shapes[1][-2:]:
        raise ValueError(f"teacher_scores are {shapes[1]}, but similarities {shapes[0]}; give a score for each.")
    for option, value in chosen.items():
        if value not in (known := get_args(Average if option == "average" else ListLoss)):
            raise ValueError(f"{option} is {value!r}; it is {', '.join(map(repr, known[:-1]))} or {known[-1]!r}.")
    for temperature in temperatures:
        check_temperature(temperature)
