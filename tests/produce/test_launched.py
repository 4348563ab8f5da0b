"""The first of torchrun's processes tells the others what to train, and when to end."""

from __future__ import annotations

import json

from torch.distributed import TCPStore

from aoq.pipeline.engine import Engine
from aoq.pipeline.launcher import Asked, Launched
from aoq.pipeline.produce.launched import call, dismiss, serve

ASKED = Asked("second_round", "no_such_experiment", "", "data", "artifacts")


def test_a_training_is_told_as_json_and_planned_by_whoever_follows():
    """The stage and the settings, not what they are made of."""
    store = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    launched = Launched(0, 2, 0, 2, 0, "127.0.0.1", store.port, ASKED)
    own = call(Engine(device="cpu", threads=1, processes=2, launched=launched))
    said = json.loads(store.get("attempt 0/call 1"))
    assert said["asked"] == vars(ASKED)
    assert (said["engine"]["threads"], said["engine"]["processes"], said["engine"]["launched"]) == (1, 2, None)
    assert not own.check(["failure of 1"])


def test_nothing_more_to_train_ends_it():
    store = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    launched = Launched(1, 2, 1, 2, 0, "127.0.0.1", store.port)
    dismiss(launched)
    serve(launched, lambda *_: 1 / 0)
