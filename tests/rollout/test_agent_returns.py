"""Returns of each agent."""

from __future__ import annotations

import numpy as np

from rollmill.envs.info_metrics import EnvMetrics
from rollmill.rollout.agent_returns import AgentReturns

NAN = np.nan


def test_each_agent_has_the_returns_of_its_rows() -> None:
    returns = AgentReturns(("left", "right"))
    # Two environments: the first one's episode ends for both agents, then the second one's for one of them.
    returns.add(np.array([1.0, -1.0, NAN, NAN], np.float32))
    returns.add(np.array([NAN, NAN, 3.0, NAN], np.float32))
    assert returns.take() == EnvMetrics({}, {}, {"left": (4.0, 2), "right": (-1.0, 1)})
    assert returns.take() == EnvMetrics({}, {}, {})


def test_an_agent_whose_episode_ends_twice_in_a_step_of_a_group_counts_twice() -> None:
    returns = AgentReturns(("only", "other"))
    returns.add(np.array([1.0, NAN, 2.0, NAN, 5.0, NAN], np.float32))
    assert returns.take().returns == {"only": (8.0, 3)}


def test_ordinary_environments_tell_nothing() -> None:
    returns = AgentReturns(())
    returns.add(np.array([1.0, 2.0], np.float32))
    assert returns.take() == EnvMetrics({}, {}, {})


def test_many_agents_share_one_mean_with_their_family() -> None:
    names = [f"archer_{index}" for index in range(12)] + [f"knight-{index}" for index in range(6)] + ["7"]
    returns = AgentReturns(names)
    returns.add(np.arange(19, dtype=np.float32))
    assert returns.take().returns == {
        "archer": (float(sum(range(12))), 12),
        "knight": (float(sum(range(12, 18))), 6),
        "7": (18.0, 1),
    }
