"""What all sections of an experiment's file are, and kinds of values that several have."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Margin = Annotated[float, Field(ge=0.0, le=2.0)]


class Section(BaseModel):
    """A TOML section: frozen; unknown keys, types and ranges are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def list_of(item: Any) -> Any:
    return Annotated[tuple[item, ...], Field(strict=False)]  # TOML's arrays are lists
