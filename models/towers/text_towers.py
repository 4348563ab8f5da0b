"""Towers that read captions as ids of their own tokeniser. A new one is a class and a line at the end."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from aoq.models.base import Captions
from aoq.models.layers import zero_masked
from aoq.models.towers.libraries import OpenClipSource, StaticVectors, TransformersSource, find_entry
from aoq.models.towers.tower import Tower, offered

States = Float[Tensor, "captions words size"]
IsWord = Bool[Tensor, "captions words"]
TOGETHER = 32
"""Captions that a CPU reads together; more have more padding, and states that leave its cache."""


class TextTower(Tower):
    """An encoder of captions; a linear layer maps its states to `embedding_size`, if that is given."""

    has_ends = True
    """True if a caption's first and last ids are special tokens."""
    network: Any

    def __init__(
        self, name: str, *, vocabulary_size: int, embedding_size: int | None = None, native: bool = False
    ) -> None:
        super().__init__()
        known, width, remedy = self._open(name, native=native)
        if known < vocabulary_size:
            raise ValueError(
                f"{name} knows {known} ids, but the captions' tokeniser has {vocabulary_size}; set [dataset] "
                f'tokeniser = "{name}"{remedy}.'
            )
        self.size = width if embedding_size is None else embedding_size
        self.project = nn.Identity() if embedding_size is None else nn.Linear(width, embedding_size)

    @abstractmethod
    def _open(self, name: str, *, native: bool) -> tuple[int, int, str]:
        """Set all but the projection; return the number of known ids, the length of a state, and a further remedy."""

    @abstractmethod
    def last_states(self, items: Captions) -> tuple[States, IsWord]:
        """Return the network's state at every id, and the mask of real ids."""

    def states(self, items: Captions) -> tuple[States, IsWord]:
        """Return the projected state at every id, zero at padding, and the mask of real ids."""
        states, mask = self.last_states(items)
        return zero_masked(self.project(states), mask), mask

    def first(self, items: Captions) -> Float[Tensor, "captions size"]:
        return self.states(items)[0][:, 0]


class TransformerText(TextTower):
    """The last hidden states of `transformers:NAME_OR_PATH`.

    A CLIP's own vector is the projected state of the last id. A SigLIP's is the projected state of the last place,
    which comes after padding; SigLIP attends to padding as to any other id.
    """

    def _open(self, name: str, *, native: bool) -> tuple[int, int, str]:
        self.source = source = TransformersSource.open(name, "Text", native=native)
        config = source.config
        if getattr(config, "vocab_size", None) is None or getattr(config, "is_encoder_decoder", False):
            raise ValueError(f"{name} is not a text encoder; choose one, such as transformers:bert-base-uncased.")
        self.network = source.build()
        self.longest: int | None = getattr(config, "max_position_embeddings", None)
        self.sees_padding = source.is_half and config.model_type.startswith("siglip")
        self.padding = getattr(config, "pad_token_id", None)
        if self.sees_padding and self.padding is None:
            raise ValueError(f"{name} sees padding, but its configuration has no pad_token_id; add the tokeniser's.")
        # The first state of a half or of a decoder has seen no other id, or has no meaning (SigLIP).
        is_causal = any(getattr(module, "is_causal", False) for module in self.network.modules())
        self.poolings = offered(first=not source.is_half and not is_causal, native=source.is_half)
        if source.is_half:
            self.native_size = getattr(config, "projection_size", None) or getattr(config, "projection_dim", None)
        return config.vocab_size, config.hidden_size, ""

    def last_states(self, items: Captions) -> tuple[States, IsWord]:
        _, mask = items.real()
        longest = mask.shape[1]

        def padded(output: Any) -> Tensor:
            states = output.last_hidden_state[:, :longest]
            return F.pad(states, (0, 0, 0, longest - states.shape[1]))

        return self._by_length(items, padded), mask

    def native(self, items: Captions) -> Float[Tensor, "captions native_size"]:
        def vectors(output: Any) -> Tensor:
            projected = getattr(output, "text_embeds", None)
            return output.pooler_output if projected is None else projected

        return self._by_length(items, vectors)

    def _by_length(self, captions: Captions, take: Callable[[Any], Tensor]) -> Tensor:
        """Take a tensor from each output. A CPU reads captions of similar lengths together, so it computes little
        padding; a GPU would wait for the launches of so many small operations."""
        if self.sees_padding or captions.words.device.type != "cpu":
            return take(self._run(captions))
        order = captions.lengths.argsort(stable=True)
        parts = [take(self._run(captions[rows])) for rows in order.split(TOGETHER)]
        return torch.cat(parts).index_select(0, order.argsort())

    def _run(self, captions: Captions) -> Any:
        longest = int(captions.lengths.max())
        if self.longest is not None and longest > self.longest:
            raise ValueError(
                f"a caption has {longest} ids, but {self.source.name} takes {self.longest}; set that as its "
                "tokeniser's model_max_length."
            )
        words, mask = captions.real()
        words = words.masked_fill(~mask, self.padding or 0)
        if not self.sees_padding:
            return self.network(input_ids=words, attention_mask=mask.long())
        assert self.longest is not None  # every SigLIP's configuration has it
        return self.network(input_ids=F.pad(words, (0, self.longest - longest), value=self.padding))


class OpenClipText(TextTower):
    """The last states of an open_clip pair's causal transformer, `open_clip:NAME/TAG` or `open_clip:PATH`.

    The pair's own vector is that of a caption's last id.
    """

    def _open(self, name: str, *, native: bool) -> tuple[int, int, str]:
        self.source = OpenClipSource.open(name)
        self.network = network = self.source.build().text
        is_causal = getattr(network, "attn_mask", None) is not None
        if not is_causal or network.cls_emb is not None or network.pool_type not in ("argmax", "eos"):
            raise ValueError(
                f"the text side of {name} is not CLIP's causal transformer; open such a pair as "
                "transformers:NAME_OR_PATH."
            )
        network.output_tokens = True
        self.native_size = network.output_dim
        if not native:
            network.text_projection = None
        # The first state has seen nothing but the start of a text.
        self.poolings = offered(first=False, native=True)
        return network.vocab_size, network.width, ""

    def last_states(self, items: Captions) -> tuple[States, IsWord]:
        (_, states), mask = self._run(items)
        return states, mask

    def native(self, items: Captions) -> Float[Tensor, "captions native_size"]:
        return self._run(items)[0][0]

    def _run(self, captions: Captions) -> tuple[tuple[Tensor, Tensor], IsWord]:
        """Return the vectors with all states, and the mask of real ids; the causal mask hides later ids."""
        words, mask = captions.real()
        longest, name = words.shape[1], self.source.name
        if longest > self.network.context_length:
            raise ValueError(
                f"a caption has {longest} ids, but {name} takes {self.network.context_length}; set [dataset] "
                f'tokeniser = "{name}", which cuts them.'
            )
        # The library's mask only fits captions of its full length.
        shorter = {"attn_mask": self.network.attn_mask[:longest, :longest]}
        return functional_call(self.network, shorter, (words.masked_fill(~mask, 0),)), mask


class StaticText(TextTower):
    """The vectors of a caption's tokens, `static:NAME_OR_PATH`, the same in every caption.

    They are trained as any tower's weights, at its rate, or frozen.
    """

    has_ends = False

    def _open(self, name: str, *, native: bool) -> tuple[int, int, str]:
        self.source = StaticVectors.open(name)
        tokens, size = self.source.shape()
        self.network = nn.Embedding(tokens, size)
        self.poolings = offered(first=False, native=False)
        return tokens, size, f", and use the {self.source.file.name} that belongs to it"

    def checkpoint_gradients(self) -> None:
        """Do nothing: a look-up keeps no activations."""

    def last_states(self, items: Captions) -> tuple[States, IsWord]:
        words, mask = items.real()
        return self.network(words.masked_fill(~mask, 0)), mask


TEXT_TOWERS: dict[str, Callable[..., TextTower]] = {
    "transformers": TransformerText,
    "open_clip": OpenClipText,
    "static": StaticText,
}


def open_text_tower(
    name: str, *, vocabulary_size: int, embedding_size: int | None = None, native: bool = False
) -> TextTower:
    """Open an encoder of captions with random weights; `native` adds the layers that make its own vector."""
    tower = find_entry(name, TEXT_TOWERS, "text tower")
    return tower(name, vocabulary_size=vocabulary_size, embedding_size=embedding_size, native=native)
