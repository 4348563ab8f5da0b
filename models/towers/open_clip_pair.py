"""Sources of open_clip towers: pairs of two encoders, each a module of its own."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from aoq.models.towers.described import seen_by_open_clip
from aoq.models.towers.preprocessing import Preprocessing
from aoq.models.towers.tower import numbers_of
from aoq.pipeline.extras import import_extra
from aoq.pipeline.loading import loading

SCHEMAS = ("local-dir:", "hf-hub:")


class OpenClipPair(NamedTuple):
    """A model as open_clip spells it, and the tag of its weights where they are not its folder's."""

    name: str
    architecture: str
    tag: str | None

    @classmethod
    def open(cls, name: str) -> OpenClipPair:
        """`open_clip:NAME/TAG`, as in ViT-B-32/laion2b_s34b_b79k; local-dir:PATH, or the path alone, of a folder with
        `open_clip_config.json`; hf-hub:OWNER/NAME. Nothing is loaded.

        Raises:
            ValueError: for a name without a tag, and for weights in a file.
        """
        model = name.partition(":")[2]
        if (folder := Path(model.removeprefix("local-dir:"))).is_dir():
            return cls(name, f"local-dir:{folder.absolute()}", None)
        if model.startswith(SCHEMAS):
            return cls(name, model, None)
        architecture, _, tag = model.partition("/")
        with loading(name, model):
            library = import_extra("open_clip", "open-clip", name)
            tags = library.list_pretrained_tags_by_model(architecture)
            if tag not in tags:
                if Path(tag).is_file():  # which is not known by its content
                    raise ValueError("put the file of weights into a folder with its open_clip_config.json")
                known = ", ".join(tags) or "none"
                raise ValueError(f"give the weights' tag after a slash; tags of {architecture}: {known}")
        return cls(name, architecture, tag)

    def build(self) -> Any:
        """The pair with random weights, as `visual` and `text`."""
        root = logging.getLogger()
        root.addFilter(_is_of_other_things)  # the library warns of what is meant here
        try:
            return self._create(load_weights=False)
        finally:
            root.removeFilter(_is_of_other_things)

    def load_into(self, side: str, network: nn.Module) -> None:
        """Copy the published weights of a side into what `build` gave, perhaps without its last projection."""
        found = getattr(self._create(self.tag), side).state_dict()
        with loading(self.name, self.architecture):
            network.load_state_dict({name: found[name] for name in network.state_dict()})

    def numbers(self) -> dict[str, float]:
        """Its temperature, and SigLIP's bias."""
        return numbers_of(self._create(self.tag))

    def preprocessing(self, visual: Any) -> Preprocessing:
        """Preprocessing of the image side."""
        library = import_extra("open_clip", "open-clip", self.name)
        with loading(self.name, self.architecture):
            of_tag = library.get_pretrained_cfg(self.architecture, self.tag) if self.tag else {}
            known = {key: of_tag.get(key) or value for key, value in visual.preprocess_cfg.items()}
            return seen_by_open_clip(self.name, known)

    def tokeniser(self) -> Any:
        """CLIP's own.

        Raises:
            ValueError: for a pair with another.
        """
        library = import_extra("open_clip", "open-clip", self.name)
        with loading(self.name, self.architecture):
            found = library.get_tokenizer(self.architecture)
            if not isinstance(found, library.SimpleTokenizer):
                raise ValueError("its tokeniser is not CLIP's; take such a pair as transformers:NAME_OR_PATH")
            return found

    def _create(self, tag: str | None = None, *, load_weights: bool = True) -> Any:
        library = import_extra("open_clip", "open-clip", self.name)
        with loading(self.name, self.architecture):
            return library.create_model(
                self.architecture,
                tag,
                device=torch.get_default_device(),
                force_custom_text=True,
                force_patch_dropout=0.0,
                load_weights=load_weights,
                pretrained_image=False,
                pretrained_text=False,
            )


def _is_of_other_things(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("No pretrained weights")


def above_the_blocks(layers: list[list[nn.Parameter]], last: Any) -> list[list[nn.Parameter]]:
    """The layers of a side, with its last projection, which stands before the others, where it belongs."""
    if not isinstance(last, nn.Parameter):
        return layers
    *below, top = ([one for one in layer if one is not last] for layer in layers)
    return [*filter(None, below), [*top, last]]
