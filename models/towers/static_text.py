"""A text tower of static vectors: a token has the same one in every caption."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn

from aoq.models.base import Captions
from aoq.models.regions import zero_masked
from aoq.models.towers.static_vectors import StaticVectors
from aoq.models.towers.text_tower import TextTower
from aoq.models.towers.tower import offered


class StaticText(TextTower):
    """The vectors of a caption's tokens, `static:NAME_OR_PATH`; with `embedding_size` through one linear layer.

    They are trained as any tower's weights, at its rate, or frozen. Captions are ids of the tokeniser beside them.
    """

    network: nn.Embedding
    has_ends = False

    def __init__(
        self, name: str, *, vocabulary_size: int, embedding_size: int | None = None, native: bool = False
    ) -> None:
        super().__init__()
        self.vectors = StaticVectors.open(name)
        tokens, size = self.vectors.shape()
        if tokens < vocabulary_size:
            raise ValueError(
                f"{name} knows {tokens} ids, and the captions' tokeniser has {vocabulary_size}; set [dataset] "
                f'tokeniser = "{name}", and take the {self.vectors.file.name} that belongs to it.'
            )
        self.network = nn.Embedding(tokens, size)
        self.size = size if embedding_size is None else embedding_size
        self.project = nn.Identity() if embedding_size is None else nn.Linear(size, embedding_size)
        self.poolings = offered(first=False, native=False)

    def load_pretrained(self) -> None:
        self.network.load_state_dict({"weight": self.vectors.read()})

    def checkpoint_gradients(self) -> None:
        """Nothing is kept that could be computed again."""

    def states(self, items: Captions) -> tuple[Float[Tensor, "captions words size"], Bool[Tensor, "captions words"]]:
        """The vector at every id, zero at padding, and the mask of real ids."""
        words, mask = items.real()
        return zero_masked(self.project(self.network(words.masked_fill(~mask, 0))), mask), mask
