"""Running statistics that normalise observations."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from rollmill.models.encoders import is_small_image
from rollmill.models.running_moments import RunningMeanStd, Sum
from rollmill.specs import TASK, ArraySpec


class ObservationNormaliser(nn.Module):
    """Normalises and clips entries of an observation; sounds, choices and excluded entries pass unchanged.

    Of several tasks, each has statistics of its own, where the observation says which task it is: with common ones, a
    task in small units would hardly differ from zero beside one in large units. What a task lacks, and is padded with
    zeros, stays zero.

    Args:
        observation: Name -> spec.
        images: Whether images of bytes are normalised as well. Small ones always are, because their encoder does not
            scale them: they may be categories. So are images of other dtypes, whose scale is unknown.
        clip: Normalised values are clipped to plus and minus this.
        tasks: Number of tasks that the entry :data:`rollmill.specs.TASK` of observations tells apart; 1 without it.
    """

    def __init__(self, observation: Mapping[str, ArraySpec], *, images: bool, clip: float, tasks: int = 1) -> None:
        super().__init__()
        self.names = tuple(
            name
            for name, spec in observation.items()
            if (images or not spec.is_image or is_small_image(spec))
            and not (spec.is_sound or spec.one_hot or spec.choices)
        )
        self.statistics = nn.ModuleList([RunningMeanStd(observation[name].shape, tasks=tasks) for name in self.names])
        self.clip = clip
        self.has_tasks = tasks > 1

    def forward(self, observation: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Map name -> ``[..., *shape]``; normalised entries become float32."""
        result, task = dict(observation), self._task(observation)
        for name, statistics in self._items():
            result[name] = statistics.normalise(observation[name], task).clamp_(-self.clip, self.clip)
        return result

    def update(self, observation: Mapping[str, Tensor], valid: Tensor | None = None, **ranks: Sum) -> None:
        """Merge a batch of raw observations; see :meth:`RunningMeanStd.update`.

        An infinite number, which ``env.check_finite=false`` lets pass, counts as the mean so far: it would otherwise
        remain in the statistics for good.
        """
        task = self._task(observation)
        for name, statistics in self._items():
            statistics.update(observation[name], valid, True, task, **ranks)

    def _task(self, observation: Mapping[str, Tensor]) -> Tensor | None:
        return observation[TASK] if self.has_tasks else None

    def _items(self) -> list[tuple[str, RunningMeanStd]]:
        pairs = []
        for name, statistics in zip(self.names, self.statistics, strict=True):
            assert isinstance(statistics, RunningMeanStd)
            pairs.append((name, statistics))
        return pairs
