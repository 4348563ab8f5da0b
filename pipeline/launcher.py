"""Settings that torchrun passes to the processes it starts; nothing here loads torch."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Asked:
    """A stage, as each process that takes part in it plans it."""

    stage: str
    experiment: str
    override: str
    data_root: str
    artifact_root: str


@dataclass(frozen=True)
class Launched:
    """One of `count` processes, and of `places` on its machine; torchrun keeps a store at the address."""

    rank: int
    count: int
    place: int
    places: int
    attempt: int
    """Number of this start: torchrun may restart the processes, and its store keeps earlier messages."""
    address: str
    port: int
    asked: Asked | None = None
    """The stage that the first process makes."""

    @classmethod
    def here(cls) -> Launched | None:
        """Return this process's place, if torchrun started it."""
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

    def settings(self, asked: Asked | None) -> dict[str, object]:
        """Engine settings for a stage that the first process makes."""
        return {"launched": replace(self, asked=asked), "processes": self.count}
