"""The configuration of a replay. Imports nothing: every process reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollmill.native import FANOUTS
from rollmill.settings.fields import setting
from rollmill.settings.value_checks import ABOVE_ZERO, NAME, SHARE, UNIT, Checked, integer, number, one_of

WeightNormalisation = Literal["batch", "global", "none"]

# More than a thousand SGD steps for each agent step would not help.
_INTERVAL = number(lambda value: value >= 0.001, "of 0.001 or more")
_EPSILON = number(lambda value: value > 1e-12, "above 1e-12: with 0, transitions without error are never drawn again")


def auto_capacity(*, has_images: bool) -> int:
    """The capacity "auto": a million images would take tens of gigabytes."""
    return 100_000 if has_images else 1_000_000


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(Checked, section="replay"):
    """What the replay keeps, how batches are drawn, and the ratio of agent steps to SGD steps.

    Attributes:
        capacity: Agent steps that are kept, at least, with what follows each episode's last one, which takes the place
            of a step, as a step at which an agent does not act does. Slots that are being written come on top. Several
            policies share it. "auto": 1,000,000, with images 100,000.
        min_size: Agent steps that are collected before the first batch is drawn (SB3's ``learning_starts``); of several
            policies, each one's own.
        update_interval: Agent steps for each SGD step: PAL's update interval, SB3's ``train_freq x n_envs /
            gradient_steps``. ``batch_size / update_interval`` (of sequences, ``sequence_length`` times that) is
            Reverb's samples per insert. It holds over the whole run, at any speed of the processes: the side that is
            ahead waits. Each of several policies learns in this ratio from its own agent steps.
        error_buffer: How many agent steps collecting may be ahead of or behind that, so that neither waits for each
            single step of the other. "auto": one step of every environment, and one update interval.
        n_step: Rewards that are added up before the bootstrap (Sutton 1988; 3 in Rainbow); with several agents, turns.
            At most ``rollout_length``.
        sequence_length: Steps of a sequence that are learned from, for recurrent learners (80 in R2D2, Kapturowski et
            al. 2019, https://openreview.net/forum?id=r1lyTjAqYX); 0: single transitions. A sequence is drawn whatever
            ends in it.
        burn_in: Steps before those, from which the recurrent state is made with the learner's own weights (40 in R2D2).
        sequence_stride: Agent steps from the start of one sequence to the next. "auto": half a sequence_length, so that
            each step is in two of them (R2D2).
        priorities: "uniform": every transition is as likely; "proportional": by its last temporal-difference error
            (Schaul et al. 2016, arXiv:1511.05952, section 3.3).
        alpha: Exponent of the priorities. 0.6 is the paper's.
        beta: Exponent of the importance weights in the beginning. 0.4 is the paper's.
        beta_end: The same at the end of the run; in between it is linear in agent steps. 1 is the paper's.
        epsilon: Added to each error, so that no transition is never drawn again.
        max_priority_decay: Factor on the largest priority so far at each update; new transitions get that priority. 1
            keeps it (the paper's); a little less forgets an outlier.
        weights: What importance weights are divided by: the largest in their batch, the largest possible in the whole
            replay ("global", the paper's), or nothing.
        stratified: Draw one transition out of each of ``batch_size`` equal parts of the priorities' sum (the paper's
            appendix B.2.1), instead of each out of the whole.
        fanout: K of the sum tree.
        remover: Which completed slot of a rollout worker is overwritten when none is free: the oldest ("fifo"), any
            ("uniform"), of sixteen drawn at random the one with the smallest sum of priorities ("lowest_priority"), or
            one by a rule of your own (:func:`rollmill.storage.removers.register_remover`).
        preload: Name of a Minari dataset (https://minari.farama.org; ``rollmill record`` writes one) whose steps are in
            the replay from the beginning. They count towards ``min_size``, but not as agent steps of the run.
        storage: "memory", or "file": the replay is a file in the run's directory, and a resumed run keeps it.
    """

    capacity: int | Literal["auto"] = setting("auto", integer(1))
    min_size: int = setting(10_000, integer(1))
    update_interval: float = setting(1.0, _INTERVAL, "(agent steps for each SGD step)")
    error_buffer: float | Literal["auto"] = setting("auto", ABOVE_ZERO, "(agent steps)")
    n_step: int = setting(1, integer(1))
    sequence_length: int = setting(0, integer(0))
    burn_in: int = setting(0, integer(0))
    sequence_stride: int | Literal["auto"] = setting("auto", integer(1))
    priorities: Literal["uniform", "proportional"] = "uniform"
    alpha: float = setting(0.6, UNIT)
    beta: float = setting(0.4, UNIT)
    beta_end: float = setting(1.0, UNIT)
    epsilon: float = setting(1e-6, _EPSILON)
    max_priority_decay: float = setting(1.0, SHARE)
    weights: WeightNormalisation = "batch"
    stratified: bool = False
    fanout: int = setting(16, one_of(*FANOUTS))
    remover: str = setting("fifo", NAME)
    preload: str | None = None
    storage: Literal["memory", "file"] = "memory"

    @property
    def most_steps(self) -> int:
        """The capacity; before the environment is known, that for vectors where it is "auto"."""
        return auto_capacity(has_images=False) if self.capacity == "auto" else self.capacity

    @property
    def is_prioritised(self) -> bool:
        """Whether priorities follow what is learned."""
        return self.priorities == "proportional"

    @property
    def has_sequences(self) -> bool:
        """Whether sequences are drawn instead of single transitions."""
        return self.sequence_length > 0

    @property
    def window(self) -> int:
        """Steps of a sequence with its burn-in, and with those that only its last rewards need; 0 for transitions."""
        return self.burn_in + self.sequence_length + self.n_step - 1 if self.has_sequences else 0

    @property
    def stride(self) -> int:
        """Agent steps from the start of one sequence, or transition, to the next."""
        if not self.has_sequences:
            return 1
        return max(1, self.sequence_length // 2) if self.sequence_stride == "auto" else self.sequence_stride

    @property
    def steps_per_sample(self) -> int:
        """Agent steps that each sample of a batch trains on."""
        return max(1, self.sequence_length)

    def least_min_size(self, rows: int) -> int:
        """Agent steps after which each of ``rows`` rows has a whole transition, or sequence."""
        return rows * (self.window or self.n_step)

    def beta_at(self, progress: float) -> float:
        """Beta after this share of the run, 0 to 1."""
        return self.beta + (self.beta_end - self.beta) * min(max(progress, 0.0), 1.0)

    def __post_init__(self) -> None:
        """Refuses values that cannot be meant.

        Raises:
            ValueError: Naming the field, the value, and what is allowed.
        """
        super().__post_init__()
        self._check_sequences()
        if self.min_size > self.most_steps:
            raise ValueError(
                f"replay.min_size={self.min_size} is more than replay.capacity={self.most_steps}: learning would never "
                "begin; use a smaller min_size or a larger capacity"
            )

    def _check_sequences(self) -> None:
        stride, length = self.sequence_stride, self.sequence_length
        if not self.has_sequences and (self.burn_in or stride != "auto"):
            raise ValueError(
                f"replay.burn_in={self.burn_in}, replay.sequence_stride={stride!r} with sequence_length=0: single "
                "transitions have neither; give a sequence_length, or leave them out"
            )
        if stride != "auto" and stride > length:
            raise ValueError(
                f"replay.sequence_stride={stride!r}: give an integer of 1 to sequence_length={length}, beyond which "
                "steps would never be learned from, or 'auto'"
            )
