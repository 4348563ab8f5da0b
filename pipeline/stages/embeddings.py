"""Embeddings: vectors of every training image and caption, by a first round or by a pretrained encoder."""

from __future__ import annotations

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.build import Build
from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.engine import Engine
from aoq.pipeline.stages.chain import Chain
from aoq.pipeline.stages.key import Roots, pretrained


def plan_embeddings(roots: Roots, experiment: Experiment, dataset: Artifact, first_round: Artifact | None) -> Artifact:
    if experiment.teacher_encoder is not None:
        return roots.artifact("embeddings", pretrained(experiment.teacher_encoder), dataset)
    assert first_round is not None  # an experiment that mines has one of both
    return roots.artifact("embeddings", {}, first_round, reads=[dataset])


def make_embeddings(chain: Chain, build: Build, engine: Engine) -> None:
    """Write the vectors, with the hash of the weights that made them."""
    from aoq.pipeline.embedding_blocks import finish_embeddings
    from aoq.pipeline.stages.encoding import embed_train_split, encode_train_split

    if chain.experiment.teacher_encoder is None:
        weights = embed_train_split(chain, "first_round", build.directory, engine)
    else:
        weights = encode_train_split(chain, chain.experiment.teacher_encoder, build.directory, engine)
    build.notes["weights_sha256"] = weights
    finish_embeddings(build.directory)
