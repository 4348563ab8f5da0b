"""The [model] section: its options are the keywords of the model's constructor."""

from __future__ import annotations

from functools import cache
from typing import ClassVar

from pydantic import SerializeAsAny

from aoq.models import MODELS
from aoq.pipeline.config.constructors import read_constructor
from aoq.pipeline.config.section import NamedSection, check_registered, derive_section

NO_OPTIONS = ("feature_size", "vocabulary_size", "regions", "word_dropout")
"""Constructor arguments that come from the data, or from a subclass."""


class ModelSection(NamedSection):
    """Options of a model of `aoq.models.MODELS`."""

    makes_embeddings: ClassVar[bool] = True
    """True if a search index can serve the model; if not, it cannot be the teacher of a table."""
    attends: ClassVar[bool] = False
    """True if words and regions attend to each other: constraints and attention metrics need such models."""

    @property
    def dimensions(self) -> int:
        """Length of the vectors that are searched."""
        size = getattr(self, "embedding_size", None)
        if size is None:
            raise ValueError(
                f"[model] {self.name} does not say how long its vectors are; call its constructor's keyword for that "
                "`embedding_size`."
            )
        return int(size)

    @classmethod
    def kind(cls, name: str) -> type[ModelSection]:
        check_registered("model", name, MODELS)
        return _derive(name, *MODELS.place(name))


@cache
def _derive(name: str, module: str, model: str) -> type[ModelSection]:
    constructor = read_constructor(module, model)
    return derive_section(
        name,
        ModelSection,
        {option: value for option, value in constructor.options.items() if option not in NO_OPTIONS},
        makes_embeddings="EmbeddingModel" in constructor.bases,
        attends=constructor.constants.get("attends", False),
    )


Model = SerializeAsAny[ModelSection]
