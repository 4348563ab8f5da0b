"""The [dataset.noise] section: training captions paired with wrong images, to learn how training takes it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipeline.model_sections import Section


class Noise(Section):
    """Wrong pairs in the training split; what is evaluated on stays as it is."""

    level: Literal["caption", "image"] = "caption"
    """`caption`: captions are drawn one by one, and their images permuted (NCR, BiCro). `image`: images are drawn, each
    with all its captions (DECL, L2RM), which is harder. Results of the two are not to be compared."""
    ratio: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    """The share that is drawn; a permutation leaves a few of them where they were."""
    seed: Annotated[int, Field(ge=0)] = 0
    file: str | None = None
    """An .npy below the data root, in place of a draw by `level`, `ratio` and `seed`: of each caption the row of its
    image, as NCR's noise files have it; or of each image the row of the one its captions go to, as DECL's."""

    @model_validator(mode="after")
    def _says_which(self) -> Noise:
        if self.ratio is None and self.file is None:
            raise ValueError("give `ratio`, the share of wrong pairs, or `file`, a noise file below the data root")
        return self

    @property
    def moves_pairs(self) -> bool:
        return self.file is not None or bool(self.ratio)
