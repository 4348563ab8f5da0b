"""Types of models' options. A configuration checks their ranges; constructors trust them."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

Size = Annotated[int, Gt(0)]
Steps = Annotated[int, Gt(0), Le(1000)]
Length = Annotated[int, Ge(3)]
Positive = Annotated[float, Gt(0.0)]
Weight = Annotated[float, Ge(0.0)]
Fraction = Annotated[float, Ge(0.0), Lt(1.0)]

Direction = Literal["t2i", "i2t"]
Normalisation = Literal["clipped_l2norm", "l2norm", "clipped_l1norm", "l1norm", "clipped", "softmax", "no_norm"]
Aggregation = Literal["LogSumExp", "Mean", "Max", "Sum"]
