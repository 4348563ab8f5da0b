"""Base of towers: a pretrained encoder of images or captions, its poolings and its layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

PoolingName = Literal["cls", "mean", "gpo", "native"]
SideName = Literal["image", "text"]
LAST_PROJECTIONS = ("proj", "text_projection")


class Tower(nn.Module, ABC):
    """A pretrained encoder. Its weights are random until `load_pretrained`, so that saved weights can be loaded where
    only the configuration is at hand."""

    network: nn.Module
    """The pretrained network."""
    source: Any
    """Its origin in `libraries`, which loads its weights."""
    size: int
    """Length of a state."""
    native_size: int | None = None
    """Length of the encoder's own vector of an item, if it makes one."""
    poolings: frozenset[PoolingName]
    """Poolings that the encoder allows: "cls" needs a method `first`, and "native" a method `native`."""
    is_frozen = False

    def load_pretrained(self) -> None:
        """Load the weights that the encoder was published with."""
        self.source.load_into(self.network)

    @abstractmethod
    def states(self, items: Any) -> tuple[Float[Tensor, "items parts size"], Bool[Tensor, "items parts"] | None]:
        """Return the state at every part, a patch or a word piece, and the mask of real ones (None: all are)."""

    def pair_numbers(self) -> dict[str, float]:
        """Return the `temperature`, and any `bias`, of the pair to which this tower belongs."""
        raise ValueError(f"a {type(self).__name__} by itself has no temperature; give [loss] temperature a number.")

    def train(self, mode: bool = True) -> Tower:
        """Set the mode; a frozen network, and frozen BatchNorm, stay in eval mode."""
        super().train(mode)
        for module in self.network.modules():
            if isinstance(module, _BatchNorm) and module.affine and not module.weight.requires_grad:
                module.eval()
        if self.is_frozen:
            self.network.eval()
        return self

    def freeze(self) -> None:
        self.network.requires_grad_(False).eval()
        self.is_frozen = True

    def freeze_below(self, trained: int) -> None:
        """Freeze the embeddings and all but the highest `trained` blocks; what follows the last block is trained."""
        layers, blocks = self.layers(), len(_stacked_blocks(self.network))
        if not blocks:
            raise ValueError(
                f"train_layers needs layers, but this {type(self).__name__} has none; name it in `freeze`."
            )
        if trained > blocks:
            raise ValueError(f"train_layers = {trained}, but this {type(self).__name__} has {blocks} layers; lower it.")
        for layer in layers[: 1 + blocks - trained]:
            for parameter in layer:
                parameter.requires_grad_(False)

    def checkpoint_gradients(self) -> None:
        """Recompute activations in the backward pass instead of keeping them."""
        network: Any = self.network
        if hasattr(network, "set_grad_checkpointing"):  # timm and open_clip
            network.set_grad_checkpointing(True)
            return
        # Transformers 5.23 renamed the method.
        enable = getattr(network, "activation_checkpointing_enable", None) or network.gradient_checkpointing_enable
        enable({"use_reentrant": False})

    def layers(self) -> list[list[nn.Parameter]]:
        """Group the parameters of the network by depth: the embeddings, every block, and what follows the last.

        Parameters between two blocks, such as at the end of a stage, belong to the lower one.
        """
        blocks = [[*block.parameters()] for block in _stacked_blocks(self.network)]
        depth_of = {id(one): depth for depth, block in enumerate(blocks, start=1) for one in block}
        depths: list[list[nn.Parameter]] = [[] for _ in range(len(blocks) + 2)]
        # Those of open_clip precede the other parameters.
        named = (getattr(self.network, name, None) for name in LAST_PROJECTIONS)
        last = [one for one in named if isinstance(one, nn.Parameter)]
        reached = 0
        for one in self.network.parameters():
            is_inside = id(one) in depth_of
            reached = depth_of.get(id(one), reached)
            if not any(one is each for each in last):
                depths[reached if is_inside or reached < len(blocks) else -1].append(one)
        depths[-1] += last
        return [depth for depth in depths if depth]


def named_towers(image: nn.Module | None, text: nn.Module | None) -> dict[SideName, Tower]:
    """Return those of a model's two encoders that are towers."""
    sides: dict[SideName, nn.Module | None] = {"image": image, "text": text}
    return {name: side for name, side in sides.items() if isinstance(side, Tower)}


def offered(*, first: bool, native: bool) -> frozenset[PoolingName]:
    """Return the poolings of an encoder that has a class token (`first`) or its own vector (`native`), or neither."""
    poolings: dict[PoolingName, bool] = {"mean": True, "gpo": True, "cls": first, "native": native}
    return frozenset(pooling for pooling, is_offered in poolings.items() if is_offered)


def _stacked_blocks(network: nn.Module) -> list[nn.Module]:
    """Find the stacked blocks, in one stack or stage by stage: those of the most frequent kind."""
    kinds: dict[type, list[nn.Module]] = {}
    for module in network.modules():
        if isinstance(module, nn.ModuleList | nn.Sequential) and len({type(block) for block in module}) == 1:
            kinds.setdefault(type(module[0]), []).extend(module)
    composed = [blocks for blocks in kinds.values() if any(True for _ in blocks[0].children())]
    return max(composed or kinds.values(), key=len, default=[])
