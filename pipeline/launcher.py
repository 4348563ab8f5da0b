"""What torchrun tells the processes that it starts; nothing here loads torch."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Launched:
    """One of `count` processes, and of `places` on its machine; torchrun keeps a store at the address."""

    rank: int
    count: int
    place: int
    places: int
    attempt: int
    """Which start of all this is: torchrun may start them again, and its store keeps what was said before."""
    address: str
    port: int

    @classmethod
    def here(cls) -> Launched | None:
        """This process, if torchrun started it."""
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            return None
        rank, count, place, places, attempt, port = (
            int(os.environ[name])
            for name in (
                "RANK",
                "WORLD_SIZE",
                "LOCAL_RANK",
                "LOCAL_WORLD_SIZE",
                "TORCHELASTIC_RESTART_COUNT",
                "MASTER_PORT",
            )
        )
        return cls(rank, count, place, places, attempt, os.environ["MASTER_ADDR"], port)

    @property
    def settings(self) -> dict[str, object]:
        """What an engine is told."""
        return {"launched": self, "processes": self.count}
