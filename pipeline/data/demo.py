"""Write the demo: a complete dataset folder of a generated world, with the truth about every region and phrase.

`{split}_labels.json` is that truth, a json object:

    names     object, colour, size, ground: what the numbers below mean
    regions   per image and region [object, colour, size, group, ground], -1 where it does not apply; a region is an
              object of a group, or ground, or clutter (all -1). The objects of a group share a phrase.
    phrases   per caption [start, stop, [region, ...]]: the tokens start .. stop - 1 of the tokenised caption
              (counted without `<start>`) speak of these regions of its image. Other words speak of none.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from aoq.pipeline.data.demo_grammar import GROUND, Caption, narrate
from aoq.pipeline.data.demo_scenes import (
    COLOURS,
    GROUNDS,
    MOST,
    NONE,
    OBJECTS,
    SIZES,
    Appearance,
    Regions,
    draw_scenes,
    place_regions,
)


def write_demo_world(
    folder: Path,
    *,
    images: int = 3000,
    dev_images: int = 500,
    seed: int,
    regions: int = 12,
    feature_size: int = 64,
    noise: float = 2.0,
    captions_an_image: int = 5,
) -> None:
    """Write the splits train and dev, byte for byte the same for the same arguments.

    `noise` is the standard deviation added to every feature; an object's own features have about 1.9.
    """
    most = min(MOST, (regions - 2) // 3)
    if most < 1 or images < 1 or dev_images < 1:
        raise ValueError(
            f"a demo world needs 5 regions or more and images in both splits; got regions={regions}, images={images}, "
            f"dev_images={dev_images}."
        )
    streams = [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(3)]
    appearance = Appearance.draw(feature_size, streams[0])
    folder.mkdir(parents=True, exist_ok=True)
    for split, size, rng in (("train", images, streams[1]), ("dev", dev_images, streams[2])):
        scenes = draw_scenes(size, most, rng)
        placed = place_regions(scenes, regions, rng)
        captions = narrate(scenes, captions_an_image, rng)
        np.save(folder / f"{split}_ims.npy", appearance.features(placed, noise, rng).astype(np.float16))
        np.save(folder / f"{split}_boxes.npy", placed.boxes)
        np.save(folder / f"{split}_pairs.npy", np.repeat(np.arange(size, dtype=np.int32), captions_an_image))
        _write_lines(folder / f"{split}_caps.txt", [caption.text for caption in captions])
        _write_lines(folder / f"{split}_ids.txt", [f"{split}-{image:06d}" for image in range(size)])
        (folder / f"{split}_labels.json").write_text(_labels(placed, captions, captions_an_image), encoding="utf-8")


def _labels(placed: Regions, captions: list[Caption], captions_an_image: int) -> str:
    """The ground truth; see the head of this file."""
    regions = placed.labels.tolist()
    phrases = []
    for row, caption in enumerate(captions):
        labels = regions[row // captions_an_image]
        phrases.append([[p.start, p.stop, _referents(labels, p.referent)] for p in caption.phrases])
    names = {"object": OBJECTS, "colour": COLOURS, "size": SIZES, "ground": GROUNDS}
    return json.dumps({"names": names, "regions": regions, "phrases": phrases}, separators=(",", ":")) + "\n"


def _referents(labels: list[list[int]], referent: int) -> list[int]:
    of_ground = referent == GROUND
    return [
        region
        for region, (*_, group, ground) in enumerate(labels)
        if (ground != NONE if of_ground else group == referent)
    ]


def _write_lines(path: Path, lines: list[str]) -> None:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
