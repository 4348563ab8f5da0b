"""VSE++: Improving Visual-Semantic Embeddings with Hard Negatives (Faghri et al., BMVC 2018)."""

from __future__ import annotations

from aoq.models.base import Captions, Code, EmbeddingModel, Images, Size
from aoq.models.layers import Projection, TextEncoder, l2_normalise, masked_mean


class VSEpp(EmbeddingModel):
    """image = l2(W mean_r v_r + b), caption = l2(last GRU state), similarity = their dot product.

    One global feature per image is the case of one region.
    """

    def __init__(
        self,
        *,
        feature_size: int,
        vocabulary_size: int,
        embedding_size: Size = 1024,
        word_size: Size = 300,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        self.project = Projection(feature_size, embedding_size)
        self.text = TextEncoder(
            vocabulary_size, word_size=word_size, embedding_size=embedding_size, bidirectional=bidirectional
        )

    def encode_images(self, images: Images) -> Code:
        return Code(l2_normalise(self.project(masked_mean(images.features, images.mask))))

    def encode_captions(self, captions: Captions) -> Code:
        return Code(l2_normalise(self.text.last(captions)))
