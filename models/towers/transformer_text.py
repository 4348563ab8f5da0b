"""A pretrained text encoder of transformers: BERT and its kin, or the text half of a CLIP or a SigLIP."""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from aoq.models.base import Captions
from aoq.models.regions import zero_masked
from aoq.models.towers.source import Source, checkpoint_gradients
from aoq.models.towers.text_tower import TextTower
from aoq.models.towers.tower import offered


class TransformerText(TextTower):
    """The last hidden states of `transformers:NAME_OR_PATH`, mapped by a linear layer to `embedding_size` if given.

    Captions are ids of that model's own tokeniser. The vector that a CLIP itself makes is that of the last id, through
    its projection; SigLIP's is that of the last place, after padding, which it sees as any other id.
    """

    def __init__(
        self, name: str, *, vocabulary_size: int, embedding_size: int | None = None, native: bool = False
    ) -> None:
        super().__init__()
        self.source = source = Source.open(name, "text", native=native)
        config = source.config
        if getattr(config, "vocab_size", None) is None or getattr(config, "is_encoder_decoder", False):
            raise ValueError(f"{name} is no text encoder; choose one, such as transformers:bert-base-uncased.")
        if config.vocab_size < vocabulary_size:
            raise ValueError(
                f"{name} knows {config.vocab_size} ids, and the captions' tokeniser has {vocabulary_size}; set "
                f'[dataset] tokeniser = "{name}".'
            )
        self.network = source.build()
        self.size = config.hidden_size if embedding_size is None else embedding_size
        self.project = nn.Identity() if embedding_size is None else nn.Linear(config.hidden_size, embedding_size)
        self.longest: int | None = getattr(config, "max_position_embeddings", None)
        self.sees_padding = source.is_half and config.model_type.startswith("siglip")
        self.padding = getattr(config, "pad_token_id", None)
        if self.sees_padding and self.padding is None:
            raise ValueError(f"{name} sees padding, and its configuration has no pad_token_id; add the tokeniser's.")
        # The first state of a half has seen nothing (CLIP), or means nothing (SigLIP).
        self.poolings = offered(first=not source.is_half, native=source.is_half)
        if source.is_half:
            self.native_size = getattr(config, "projection_size", None) or getattr(config, "projection_dim", None)

    def load_pretrained(self) -> None:
        self.source.load_into(self.network)

    def checkpoint_gradients(self) -> None:
        checkpoint_gradients(self.network)

    def states(self, items: Captions) -> tuple[Float[Tensor, "captions words size"], Bool[Tensor, "captions words"]]:
        """Return the state at every id, zero at padding, and the mask of real ids."""
        found, mask = self._run(items)
        return zero_masked(self.project(found.last_hidden_state[:, : mask.shape[1]]), mask), mask

    def first(self, items: Captions) -> Float[Tensor, "captions size"]:
        return self.states(items)[0][:, 0]

    def native(self, items: Captions) -> Float[Tensor, "captions native_size"]:
        found, _ = self._run(items)
        vectors = getattr(found, "text_embeds", None)
        return found.pooler_output if vectors is None else vectors

    def _run(self, captions: Captions) -> tuple[Any, Bool[Tensor, "captions words"]]:
        """Run the network; return its output and the mask of real ids."""
        longest = int(captions.lengths.max())
        if self.longest is not None and longest > self.longest:
            raise ValueError(
                f"a caption has {longest} ids, and {self.source.name} takes {self.longest}; set that as its "
                "tokeniser's model_max_length."
            )
        words, mask = captions.real()
        words = words.masked_fill(~mask, self.padding or 0)
        if not self.sees_padding:
            return self.network(input_ids=words, attention_mask=mask.long()), mask
        assert self.longest is not None  # a SigLIP's configuration says it
        return self.network(input_ids=F.pad(words, (0, self.longest - longest), value=self.padding)), mask
