"""A prioritised replay for those who keep their own trainer: NumPy in, NumPy out, any number of processes.

::

    from rollmill.replay import PrioritizedReplay

    replay = PrioritizedReplay(
        1_000_000,
        {"obs": ((8,), "float32"), "action": ((), "int64"), "reward": ((), "float32")},
        num_envs=16,
        n_step=3,
    )
    replay.add(obs=obs, action=action, reward=reward, terminated=terminated, truncated=truncated, next_obs=next_obs)
    batch = replay.sample(256, beta=0.4)
    target = batch["reward"] + batch["discount"] * value(batch["next_obs"])
    td_error = learn(batch["obs"], batch["action"], target, batch.weights)
    replay.update_priorities(batch, td_error)

It is what the ``replay`` regime does in slots (sum tree, lazy writing, generations), over a ring of its own. Nothing
here imports torch.

* :class:`PrioritizedReplay` is the replay, :class:`Batch` what it gives.
* ``fields`` says what a transition is made of, ``arguments`` what ``add`` is given, ``settings`` what there is to
  choose, ``memory`` where it all lies; ``saving`` writes replays to files and reads them.
"""

from rollmill.replay.batch import Batch
from rollmill.replay.prioritized import PrioritizedReplay

__all__ = ["Batch", "PrioritizedReplay"]
