"""The text side of a pair of open_clip: CLIP's causal transformer."""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.func import functional_call

from aoq.models.base import Captions
from aoq.models.regions import zero_masked
from aoq.models.towers.open_clip_pair import OpenClipPair, above_the_blocks
from aoq.models.towers.text_tower import TextTower
from aoq.models.towers.tower import offered


class OpenClipText(TextTower):
    """The last states of `open_clip:NAME/TAG` or `open_clip:PATH`, with `embedding_size` through one linear layer.

    Captions are ids of CLIP's tokeniser. The vector that the pair compares is that of a caption's last id.
    """

    network: Any

    def __init__(
        self, name: str, *, vocabulary_size: int, embedding_size: int | None = None, native: bool = False
    ) -> None:
        super().__init__()
        self.pair = OpenClipPair.open(name)
        self.network = network = self.pair.build().text
        if (
            getattr(network, "attn_mask", None) is None
            or network.cls_emb is not None
            or network.pool_type not in ("argmax", "eos")
        ):
            raise ValueError(
                f"the text side of {name} is not CLIP's causal transformer; take such a pair as "
                "transformers:NAME_OR_PATH."
            )
        if network.vocab_size < vocabulary_size:
            raise ValueError(
                f"{name} knows {network.vocab_size} ids, and the captions' tokeniser has {vocabulary_size}; set "
                f'[dataset] tokeniser = "{name}".'
            )
        network.output_tokens = True
        self.native_size = network.output_dim
        if not native:
            network.text_projection = None
        self.size = network.width if embedding_size is None else embedding_size
        self.project = nn.Identity() if embedding_size is None else nn.Linear(network.width, embedding_size)
        # The first state has seen nothing but the start of a text.
        self.poolings = offered(first=False, native=True)

    def load_pretrained(self) -> None:
        self.pair.load_into("text", self.network)

    def checkpoint_gradients(self) -> None:
        self.network.set_grad_checkpointing(True)

    def layers(self) -> list[list[nn.Parameter]]:
        return above_the_blocks(super().layers(), self.network.text_projection)

    def states(self, items: Captions) -> tuple[Float[Tensor, "captions words size"], Bool[Tensor, "captions words"]]:
        (_, states), mask = self._run(items)
        return zero_masked(self.project(states), mask), mask

    def native(self, items: Captions) -> Float[Tensor, "captions native_size"]:
        return self._run(items)[0][0]

    def _run(self, captions: Captions) -> tuple[tuple[Tensor, Tensor], Bool[Tensor, "captions words"]]:
        """The vectors and all states, and which ids are real: a causal mask lets none see what comes after it."""
        words, mask = captions.real()
        longest = words.shape[1]
        if longest > self.network.context_length:
            raise ValueError(
                f"a caption has {longest} ids, and {self.pair.name} takes {self.network.context_length}; set [dataset] "
                f'tokeniser = "{self.pair.name}", which cuts them.'
            )
        # The library masks captions of its full length alone.
        shorter = {"attn_mask": self.network.attn_mask[:longest, :longest]}
        return functional_call(self.network, shorter, (words.masked_fill(~mask, 0),)), mask
