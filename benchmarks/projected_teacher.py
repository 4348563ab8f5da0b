"""A teacher from an image encoder and a text encoder without a shared space: a trained projection joins them.

    pip install wordllama                                     # its wheel holds token vectors and a tokeniser
    python benchmarks/projected_teacher.py data/prepared table/ \\
        --token-vectors .../wordllama/weights/l2_supercat_256.safetensors \\
        --tokenizer .../wordllama/tokenizers/l2_supercat_tokenizer_config.json

Both encoders stay fixed: an image is the mean of its prepared features (`aoq prepare`), a caption that of its tokens'
static vectors. Two linear maps into one space are trained with InfoNCE on the training split. The output is the recalls
on dev every few epochs, and the exact table of the training split.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # beside this file, `pipeline` is a benchmark

import click
import numpy as np
import torch
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

import aoq
from aoq.pipeline.data.folder import Split, open_split

BLOCK = 512
SHOWN = 5
"""Epochs between two printed lines."""


def image_vectors(split: Split) -> Tensor:
    blocks = (split.features[start : start + BLOCK] for start in range(0, split.image_count, BLOCK))
    return torch.from_numpy(np.concatenate([block.astype(np.float32).mean(axis=1) for block in blocks]))


def caption_vectors(split: Split, tokenizer: Tokenizer, vectors: np.ndarray) -> Tensor:
    encoded = tokenizer.encode_batch(split.captions, add_special_tokens=False)
    return torch.from_numpy(np.stack([vectors[one.ids].astype(np.float32).mean(axis=0) for one in encoded]))


class Projection(nn.Module):
    """A linear map of standardised vectors to unit vectors."""

    def __init__(self, vectors: Tensor, size: int) -> None:
        super().__init__()
        self.mean, self.scale = vectors.mean(0), vectors.std(0).clamp_min(1e-6)
        self.linear = nn.Linear(vectors.shape[1], size)

    def forward(self, vectors: Tensor) -> Tensor:
        return F.normalize(self.linear(F.dropout((vectors - self.mean) / self.scale, 0.2, self.training)), dim=1)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--token-vectors", type=click.Path(path_type=Path), required=True)
@click.option("--tokenizer", type=click.Path(path_type=Path), required=True)
@click.option("--size", default=256, show_default=True)
@click.option("--epochs", default=20, show_default=True)
@click.option("--batch-size", default=256, show_default=True)
@click.option("--temperature", default=0.05, show_default=True)
def main(
    folder: Path,
    table: Path,
    token_vectors: Path,
    tokenizer: Path,
    size: int,
    epochs: int,
    batch_size: int,
    temperature: float,
) -> None:
    """Train the projection and mine with it."""
    torch.manual_seed(0)
    words = Tokenizer.from_file(str(tokenizer))
    (vectors,) = load_file(token_vectors).values()
    splits = {name: open_split(folder, name) for name in ("train", "dev")}
    sides = {name: (image_vectors(split), caption_vectors(split, words, vectors)) for name, split in splits.items()}
    maps = [Projection(vectors, size) for vectors in sides["train"]]
    optimiser = torch.optim.AdamW([p for one in maps for p in one.parameters()], lr=1e-3, weight_decay=1e-3)
    image_of = torch.from_numpy(splits["train"].image_of).long()

    def encoded(name: str) -> list[np.ndarray]:
        with torch.inference_mode():
            return [one.eval()(vectors).numpy() for one, vectors in zip(maps, sides[name], strict=True)]

    for epoch in range(1, epochs + 1):
        total = 0.0
        for captions in torch.randperm(len(image_of)).split(batch_size):
            images = image_of[captions]
            rows = zip(maps, sides["train"], (images, captions), strict=True)
            ours, theirs = (one.train()(vectors[row]) for one, vectors, row in rows)
            pairs = aoq.Similarities(ours @ theirs.T, aoq.positive_pairs(images, mask_positives=True))
            loss = aoq.info_nce(pairs, temperature=temperature).total
            optimiser.zero_grad()
            (loss / len(captions)).backward()
            optimiser.step()
            total += float(loss.detach())
        if epoch % SHOWN == 0 or epoch == epochs:
            images, captions = encoded("dev")
            found = aoq.recalls(images @ captions.T, splits["dev"].image_of)
            print(f"epoch {epoch}: loss a caption {total / len(image_of):.2f}, dev rsum {found['rsum']:.1f}")
    mined = aoq.hard_negatives(*encoded("train"), splits["train"].image_of, h=(100, 30))
    mined.save(table, teacher={"images": str(folder), "captions": token_vectors.name, "size": size})
    print(f"{table}: {mined}")


if __name__ == "__main__":
    main()
