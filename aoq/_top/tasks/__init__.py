"""The module of `luigi --module tasks`: an alias of `aoq.tasks`, installed at the top level."""

import sys

import aoq.tasks

sys.modules[__name__] = aoq.tasks
