"""`torchrun … -m aoq.tasks SecondRound --experiment f30k_scan`: Luigi in the first process; others train with it."""

from __future__ import annotations

import logging
import sys

from luigi.cmdline import luigi_run

from aoq.pipeline.launcher import Launched


def main() -> None:
    launched = Launched.here()
    if launched is None:
        luigi_run(["--module", "aoq.tasks", *sys.argv[1:]])
        return
    from aoq.pipeline.produce.launched import dismiss, serve
    from aoq.pipeline.produce.training import follow_stage

    if launched.rank:
        logging.getLogger().setLevel(logging.ERROR)
        serve(launched, follow_stage)
        return
    try:
        luigi_run(["--module", "aoq.tasks", *sys.argv[1:]])
    finally:
        dismiss(launched)


if __name__ == "__main__":
    main()
