"""A pretrained text encoder of transformers, BERT for one, in place of a GRU."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from aoq.models.base import Captions
from aoq.models.regions import zero_masked
from aoq.pipeline.extras import import_extra


class TransformerText(nn.Module):
    """The last hidden states of `transformers:NAME_OR_PATH`, through one linear layer.

    Captions are ids of that model's own tokeniser. Weights are random until `load_pretrained`, so that saved ones can
    be loaded where only the configuration is at hand.
    """

    def __init__(self, name: str, *, vocabulary_size: int, embedding_size: int) -> None:
        super().__init__()
        library, _, self.source = name.partition(":")
        if library != "transformers" or not self.source:
            raise ValueError(f"there is no text tower {name!r}; known is transformers:NAME_OR_PATH.")
        config = _library().AutoConfig.from_pretrained(self.source)
        if getattr(config, "vocab_size", None) is None or getattr(config, "is_encoder_decoder", False):
            raise ValueError(f"{name} is no text encoder; choose one, such as transformers:bert-base-uncased.")
        if config.vocab_size < vocabulary_size:
            raise ValueError(
                f"{name} knows {config.vocab_size} ids, and the captions' tokeniser has {vocabulary_size}; set "
                f'[dataset] tokeniser = "{name}".'
            )
        self.network = _without_pooler(_library().AutoModel.from_config(config, dtype=torch.float32))
        self.project = nn.Linear(config.hidden_size, embedding_size)
        self.padding = config.pad_token_id or 0

    def load_pretrained(self) -> None:
        found = _library().AutoModel.from_pretrained(self.source, dtype=torch.float32)
        self.network.load_state_dict(_without_pooler(found).state_dict())

    def states(self, captions: Captions) -> tuple[Float[Tensor, "captions words size"], Bool[Tensor, "captions words"]]:
        """The state at every id, zero at padding, and the mask of real ids."""
        longest = int(captions.lengths.max())
        words, lengths = captions.words[:, :longest], captions.lengths.to(captions.words.device)
        mask = torch.arange(longest, device=words.device) < lengths.unsqueeze(1)
        words = words.masked_fill(~mask, self.padding)
        states = self.network(input_ids=words, attention_mask=mask.long()).last_hidden_state
        return zero_masked(self.project(states), mask), mask


def _library() -> Any:
    return import_extra("transformers", "transformers", "a text tower")


def _without_pooler(network: Any) -> Any:
    """BERT's further layer on the first state has no part in the states."""
    if getattr(network, "pooler", None) is not None:
        network.pooler = None
    return network
