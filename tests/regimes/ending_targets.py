"""Processes that play the learner of a run, and others, for tests of a run's end."""

from __future__ import annotations

import sys
import time

from rollmill.envs.info_metrics import EnvMetrics
from rollmill.learning.report import CheckpointWritten, LearnerFinished, LearnerNote, LearnerReport
from rollmill.roles import LearnerPhase
from rollmill.runtime.child import ChildContext

REPORT = LearnerReport(agent_steps=8)


def learner(context: ChildContext, is_patient: bool, stopped_by_others: bool = False) -> None:
    """Reports, and finishes at once, or when it is asked to."""
    context.send(EnvMetrics({"coins": (6.0, 3)}, {}, {"left": (1.0, 2)}))
    context.send(REPORT)
    context.send(CheckpointWritten("runs/a/checkpoint_1.pt"))
    context.send(LearnerNote("mind the gap"))
    while is_patient and not context.stop.is_set():
        context.ledger.enter(LearnerPhase.WAITING)
        time.sleep(0.01)
    context.send(LearnerFinished(REPORT, "runs/a/checkpoint_2.pt", stopped_by_others))


def talkative_learner(context: ChildContext) -> None:
    """Sends more after its last message, as other processes may."""
    learner(context, is_patient=False)
    context.send(CheckpointWritten("runs/a/checkpoint_2.pt"))


def stuck(context: ChildContext, reports: bool) -> None:
    """Does not end when it is asked to."""
    if reports:
        context.send(REPORT)
    context.ledger.enter(LearnerPhase.SAVING)
    time.sleep(600)


def fails(context: ChildContext) -> None:
    raise ValueError("the third wheel is loose")


def lacks_memory(context: ChildContext) -> None:
    raise MemoryError


def exits(context: ChildContext) -> None:
    sys.exit(0)


def returns(context: ChildContext) -> None:
    """Ends as if its work was done."""


def hangs(context: ChildContext) -> None:
    """Computes one batch for ever."""
    context.ledger.enter(LearnerPhase.LEARNING)
    time.sleep(600)
