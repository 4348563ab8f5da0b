"""A pretrained image encoder of transformers: ViT, DINOv2, Swin, or the image half of a CLIP or a SigLIP."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from aoq.models.towers.described import seen_by_transformers
from aoq.models.towers.image_tower import ImageTower
from aoq.models.towers.source import Source, checkpoint_gradients
from aoq.models.towers.tower import offered
from aoq.pipeline.extras import import_extra
from aoq.pipeline.loading import loading

CLASS_TOKENS = ("cls_token", "class_embedding")


class TransformerImage(ImageTower):
    """The last hidden states of `transformers:NAME_OR_PATH`; half of a pair also has its own vector."""

    def __init__(self, name: str, *, native: bool = False) -> None:
        super().__init__()
        self.source = source = Source.open(name, "vision", native=native)
        config = source.config
        if getattr(config, "num_channels", None) is None:
            raise ValueError(f"{name} is no image encoder; choose a ViT, a Swin or a CLIP.")
        module = import_extra("transformers.image_processing_base", "transformers", name)
        with loading(name, source.path):
            seen, _ = module.ImageProcessingMixin.get_image_processor_dict(source.path)
            self.preprocessing = seen_by_transformers(name, seen)
        self.network = source.build()
        self.size = getattr(config, "hidden_size", None) or config.hidden_sizes[-1]
        self.has_class = any(one.endswith(CLASS_TOKENS) for one, _ in self.network.named_parameters())
        self.poolings = offered(first=self.has_class, native=source.is_half)
        if source.is_half:
            self.native_size = config.projection_dim if hasattr(config, "projection_dim") else config.hidden_size

    @property
    def prefix(self) -> int:
        names = [name for name, _ in self.network.named_parameters()]
        distils = any(name.endswith("distillation_token") for name in names)  # DeiT's
        return int(self.has_class) + distils + getattr(self.source.config, "num_register_tokens", 0)

    def load_pretrained(self) -> None:
        self.source.load_into(self.network)

    def pair_numbers(self) -> dict[str, float]:
        return self.source.numbers() if self.source.is_half else super().pair_numbers()

    def checkpoint_gradients(self) -> None:
        checkpoint_gradients(self.network)

    def tokens(self, pixels: Float[Tensor, "images 3 height width"]) -> Float[Tensor, "images tokens size"]:
        found: Tensor = self.network(pixel_values=pixels).last_hidden_state
        return found.flatten(2).transpose(1, 2) if found.ndim == 4 else found

    def vectors(self, pixels: Float[Tensor, "images 3 height width"]) -> Float[Tensor, "images native_size"]:
        found = self.network(pixel_values=pixels)
        vectors: Tensor | None = getattr(found, "image_embeds", None)
        return found.pooler_output if vectors is None else vectors
