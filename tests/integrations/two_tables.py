"""Two processes with different tables and options: the errors they raise."""

from __future__ import annotations

import sys

import numpy as np
import torch

import aoq
from aoq.integrations.processes import require_same_draws


def main() -> None:
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    mine, other = (aoq.hard_negatives(np.eye(5), np.eye(5) + seed, np.arange(5), h=2) for seed in (0, 1))
    require_same_draws(mine, 3)
    for given in ((mine if rank else other, 3), (mine, rank), (mine.screen(mutual_rank=1 + rank), 3)):
        try:
            require_same_draws(*given)
        except ValueError as error:
            sys.stdout.write(f"{rank}: {error}\n")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
