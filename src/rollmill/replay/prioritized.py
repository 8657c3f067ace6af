"""The replay: a ring of transitions in shared memory, drawn from by priority.

Every operation is one native call (see ``cpp/core/replay_ring.h``); this module names, converts and checks arguments.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any, NoReturn, Self, cast

import numpy as np
from numpy.typing import ArrayLike

from rollmill.native import ReplayRing
from rollmill.replay.arguments import Arguments
from rollmill.replay.batch import Batch, new_batch
from rollmill.replay.fields import FieldSpecs, array_of, fields_of, observations_of, spread
from rollmill.replay.memory import Memory, PrivateMemory, shared_memory
from rollmill.replay.saving import create_file, flush, header_of, layout_of, load, open_file, save
from rollmill.replay.settings import Settings, WeightNormalisation


class PrioritizedReplay:
    """A prioritised replay (Schaul et al. 2016, arXiv:1511.05952) for any trainer.

    Transitions come in one of two ways:

    * *Steps in order*, of ``num_envs`` environments (the default where there is a field ``obs``): each ``add`` takes
      one step of all of them, with ``terminated``, ``truncated`` and the true ``next_obs``. Observations are stored
      once: the next observation of a step is the observation of the one after, or the last observation of its episode,
      which takes a row of its own. Rewards are added up over ``n_step`` steps, up to the end of the episode. A step can
      be drawn when the ``n_step`` steps after it (or the end of its episode) are there.
    * *Independent transitions* (``next_of=()`` and ``n_step=1``): each ``add`` takes any number of them; every field is
      given back as it came.

    New transitions get the highest priority so far; a sample is drawn with probability ``p / sum p``, and ``p`` becomes
    ``(|TD error| + epsilon) ** alpha`` when its error is known. The oldest transitions make place for new ones.

    Any thread may call any method, and so may any process: send the replay to a child as an argument of
    ``multiprocessing.Process``, or let it be inherited by fork. *Steps* must be added by one thread for each object;
    other threads take a :meth:`view` with environments of its own (child processes have one). A process that is
    killed leaves the replay whole; nothing that it had half written is drawn.

    Args:
        capacity: Rows: transitions, and one for each episode's last observation.
        fields: Name -> (shape of one transition's, dtype), which may be nested: ``{"obs": {"image": ((84, 84),
            "uint8")}}`` is the field ``"obs/image"``. Steps in order need ``"reward": ((), "float32")``.
        num_envs: Environments whose steps this object adds.
        n_step: Rewards that are added up before the bootstrap (Sutton 1988).
        discount: Gamma: of the rewards added up, and of ``batch["discount"]``.
        alpha: Exponent of the priorities; 0.6 is the paper's.
        beta: Exponent of the importance weights, where ``sample`` is not given another; 0.4 is the paper's first.
        epsilon: Added to each error's magnitude, so that no transition is never drawn again.
        weights: What the importance weights ``(N p / sum p) ** -beta`` are divided by: the largest in the batch, the
            largest possible in the whole replay ("global", the paper's), or nothing.
        max_priority_decay: Factor on the highest priority so far at each update, down to that of an error of 0; a
            little less than 1 forgets an outlier.
        stratified: Draw one transition out of each of ``batch_size`` equal parts of the sum (appendix B.2.1).
        uniform: All transitions are as likely; priorities are not updated.
        next_of: Fields of which batches have the next one too. By default ``("obs",)``, with all that is nested in it;
            no field if there is no such or a field ``next_obs``.
        fanout: K of the sum tree; 16 fills a cache line.
        path: A new file to keep everything in, in a folder that is there, instead of memory; :meth:`open` finds it
            again.
        shared: Whether other processes can have it, too. Without that, sampling from a large replay is faster
            (``memory`` says why), and forked children refuse theirs; threads share it either way. A file is shared.
        seed: Of the draws. Each view and each process draws from a stream of its own.

    Attributes:
        capacity: Rows.
        fields: What a transition is made of.
        num_envs: Environments whose steps this object adds.
        beta: Exponent of the importance weights where ``sample`` is not given another; may be set.

    Raises:
        ValueError: A setting is out of range, or does not fit the others.
        rollmill.runtime.arena.NotEnoughMemory: There is not as much memory.
        rollmill.runtime.arena.NotEnoughDisk: There is not as much room for ``path``.
        FileExistsError: There is a file ``path``.
        FileNotFoundError: There is no folder for it.

    Example:
        >>> replay = PrioritizedReplay(1000, {"obs": ((4,), "float32"), "reward": ((), "float32")}, num_envs=2)
        >>> for t in range(3):
        ...     replay.add(
        ...         obs=np.full((2, 4), t, np.float32),
        ...         reward=np.ones(2, np.float32),
        ...         terminated=np.zeros(2, bool),
        ...         next_obs=np.full((2, 4), t + 1, np.float32),
        ...     )
        >>> batch = replay.sample(32)
        >>> batch["next_obs"].shape, batch.weights.dtype, len(replay)
        ((32, 4), dtype('float32'), 4)
        >>> replay.update_priorities(batch, np.zeros(32, np.float32))
        0
    """

    def __init__(
        self,
        capacity: int,
        fields: FieldSpecs,
        *,
        num_envs: int = 1,
        n_step: int = 1,
        discount: float = 0.99,
        alpha: float = 0.6,
        beta: float = 0.4,
        epsilon: float = 1e-6,
        weights: WeightNormalisation = "batch",
        max_priority_decay: float = 1.0,
        stratified: bool = False,
        uniform: bool = False,
        next_of: Sequence[str] | None = None,
        fanout: int = 16,
        path: str | os.PathLike[str] | None = None,
        shared: bool = True,
        seed: int = 0,
    ) -> None:
        specs = {field.name: (field.shape, field.dtype) for field in fields_of(fields)}
        settings = Settings(
            capacity=capacity,
            specs=specs,
            num_envs=num_envs,
            n_step=n_step,
            discount=discount,
            alpha=alpha,
            beta=beta,
            epsilon=epsilon,
            weights=weights,
            max_priority_decay=max_priority_decay,
            stratified=stratified,
            uniform=uniform,
            next_of=observations_of(specs) if next_of is None else spread(next_of, specs),
            fanout=fanout,
            seed=seed,
        )
        header = header_of(settings)
        layout = layout_of(settings)
        arena: Memory
        if path is not None:
            if not shared:
                raise ValueError(f"path is {path!r} and shared False; a file is always shared, so leave one out")
            arena = create_file(layout, Path(path))
        else:
            arena = shared_memory(layout) if shared else PrivateMemory(layout)
        arena["settings"][: len(header)] = header
        self._attach(arena, settings, create=True)

    def _attach(self, arena: Memory, settings: Settings, *, create: bool = False) -> None:
        self._arena = arena
        self._settings = settings
        self._ring = ReplayRing(
            arena["ring"],
            settings.shape(),
            num_envs=settings.num_envs,
            seed=settings.seed,
            shared=not isinstance(arena, PrivateMemory),
            create=create,
        )
        self._ring.configure(
            alpha=0.0 if settings.uniform else float(settings.alpha),
            epsilon=float(settings.epsilon),
            decay=float(settings.max_priority_decay),
            weights="ones" if settings.uniform else settings.weights,
            stratified=settings.stratified,
        )
        self.capacity = settings.capacity
        self.fields = settings.fields
        self.num_envs = settings.num_envs
        self.beta = float(settings.beta)
        self._is_linked = settings.is_linked
        self._is_uniform = settings.uniform
        self._arguments = Arguments(settings)
        self._take, self._take_next = self._arguments.take, self._arguments.take_next
        self._num_given = self._arguments.count
        self._sample, self._update = self._ring.sample, self._ring.update

    def __reduce__(self) -> tuple[Any, ...]:
        """Only for a child process that is being started: the memory goes as a descriptor."""
        if not isinstance(self._arena, PrivateMemory) and get_spawning_popen() is None:
            raise ValueError(
                "a replay is sent only as an argument of multiprocessing.Process, to a child that is being started; "
                "save writes a copy"
            )
        return _attached, (type(self), self._arena, self._current_settings())

    def _current_settings(self) -> Settings:
        return replace(self._settings, beta=self.beta)

    def __copy__(self) -> NoReturn:
        raise ValueError(
            "a replay cannot be copied; view returns another object for the same memory, save writes a copy"
        )

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__copy__()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Opens the file of an earlier replay, with its settings and contents.

        Raises:
            OSError: There is no such file, or it is not whole.
            ValueError: It is no replay's, or it was changed and not flushed before the machine went down: not all may
                have reached the disk.
        """
        arena, settings = open_file(Path(path))
        return cast("Self", _attached(cls, arena, settings))

    def view(self, *, num_envs: int | None = None) -> Self:
        """The same replay for another thread, with environments of its own.

        All views share the capacity: one with long episodes keeps fewer steps of its own, the more others add.

        Args:
            num_envs: How many; by default as many as here.

        Raises:
            ValueError: There is no place for so many.
        """
        self._ring.check_process()
        settings = self._current_settings()
        if num_envs is not None:
            settings = replace(settings, num_envs=num_envs)
        return cast("Self", _attached(type(self), self._arena, settings))

    def add(self, /, **arrays: ArrayLike | Mapping[str, Any]) -> None:
        """Appends a step of each environment, or any number of independent transitions.

        Arrays that are C-contiguous and of their field's dtype are copied straight into the ring; others are converted
        first, where that keeps the kind of number.

        Args:
            **arrays: Every field by name, ``[num_envs, ...]`` or ``[N, ...]`` (with one environment also without that
                axis). Nested fields as mappings, or by their whole names. Steps in order also need:

                * ``terminated``, bool ``[num_envs]``: the step ended its episode, beyond which there is no reward;
                * ``truncated``, bool ``[num_envs]``, may be left out: something else ended it;
                * ``next_obs`` (``next_`` and a name of ``next_of``): the observation after the step, which is read only
                  where an episode ends, and must then be its last and not the next one's first;
                * ``valid``, bool ``[num_envs]``, may be left out: False where this is no step, such as the one in which
                  Gymnasium's NEXT_STEP vectors reset. It is skipped, and a step that waited for it is never drawn.

        Raises:
            ValueError: An array is missing or unknown, or has a wrong shape, or a dtype that is not converted. Nothing
                was added, and the next steps do not follow the last ones.
            RuntimeError: Likewise: timed out acquiring a lock after a minute, because its holder was stopped.
        """
        ring = self._ring
        try:
            if not self._is_linked:
                if len(arrays) == self._num_given and ring.add(self._take(arrays)) >= 0:
                    return
            else:
                truncated, valid = arrays.get("truncated"), arrays.get("valid")
                count = self._num_given + (truncated is not None) + (valid is not None)
                if (
                    len(arrays) == count
                    and ring.add_step(
                        self._take(arrays), self._take_next(arrays), arrays["terminated"], truncated, valid
                    )
                    >= 0
                ):
                    return
        except KeyError:
            pass
        self._add_converted(arrays)

    def _add_converted(self, arrays: Mapping[str, Any]) -> None:
        try:
            converted = self._arguments.converted(arrays)
            added = self._ring.add_step(*converted) if self._is_linked else self._ring.add(*converted)
            if added < 0:
                raise ValueError("these arrays cannot be read; give NumPy arrays of the fields' shapes and dtypes")
        except BaseException:  # whatever a user's own arrays raise, too
            self._ring.interrupt()
            raise

    def interrupt(self) -> None:
        """Says that the environments were reset in the middle of their episodes, or replaced.

        The next steps do not follow the last ones, which are never drawn, because their outcome is unknown. Has no
        effect on independent transitions.
        """
        self._ring.interrupt()

    def sample(self, batch_size: int, beta: float | None = None) -> Batch:
        """Draws transitions, each with probability ``p / sum p``, with replacement.

        Transitions are never torn: one that is overwritten while it is copied is drawn again.

        Args:
            batch_size: B.
            beta: Exponent of the importance weights; by default the replay's.

        Returns:
            Every field, ``[B, ...]``, as it was added. Of steps in order besides, for the k <= n_step steps from there
            to the end of the episode: ``"reward"``, float32 ``[B]``, the sum of ``discount ** i`` times their rewards;
            ``"next_obs"`` (``next_of``), the observation after them; ``"discount"``, float32 ``[B]``, ``discount **
            k``, or 0 where they end in termination, which is what the value of ``next_obs`` is to be multiplied with;
            ``"terminated"``, bool ``[B]``, whether they do.

        Raises:
            ValueError: There is nothing to draw, ``batch_size`` is not positive, or ``beta`` is out of range.
        """
        if beta is None:
            beta = self.beta
        try:
            while (batch := self._sample(batch_size, beta)) is None:
                self._make_batch(batch_size)
        except TypeError:
            raise ValueError(
                f"batch_size is {batch_size!r} and beta {beta!r}; give a whole number of at least 1, and a number"
            ) from None
        if batch is False:
            ahead = self._ring.lookahead
            hint = f" (a step can be drawn when {ahead} more were added)" if ahead else ""
            raise ValueError(f"there is nothing to sample yet; add transitions first{hint}")
        return cast("Batch", batch)

    def _make_batch(self, size: int) -> None:
        """Makes arrays to draw into."""
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
            raise ValueError(f"batch_size is {size!r}; it must be a whole number of at least 1")
        self._ring.adopt(*new_batch(size, self._settings))

    def update_priorities(
        self, batch: Batch | ArrayLike, td_errors: ArrayLike | None = None, *, priorities: ArrayLike | None = None
    ) -> int:
        """Sets the priorities of transitions by their TD errors; a uniform replay ignores it.

        Args:
            batch: What was sampled, or int64 ``[B]``, tickets of it. Of equal tickets the last one's error stays; to
                the maximum, with which transitions begin, all of them count.
            td_errors: ``[B]``, of either sign: the priority becomes ``(|error| + epsilon) ** alpha``.
            priorities: ``[B]``, instead of errors: above 0, taken as they are.

        Returns:
            How many transitions no longer exist, and were skipped.

        Raises:
            ValueError: The lengths differ; or an error is NaN or infinite, or a priority not above 0 and at most 2^64:
                then nothing was changed.
        """
        if (td_errors is None) == (priorities is None):
            raise ValueError("update_priorities takes td_errors or priorities, one of them")
        if self._is_uniform:
            return 0
        tickets = batch.tickets if isinstance(batch, Batch) else batch
        is_priority = td_errors is None
        values = priorities if is_priority else td_errors
        skipped = self._update(tickets, values, is_priority)
        if skipped >= 0:
            return skipped
        return self._update_converted(tickets, td_errors, priorities)

    def _update_converted(self, tickets: ArrayLike, td_errors: ArrayLike | None, priorities: ArrayLike | None) -> int:
        name = "priorities" if td_errors is None else "td_errors"
        which = array_of("tickets", tickets, (), np.dtype(np.int64), None)
        values = array_of(name, priorities if td_errors is None else td_errors, (), np.dtype(np.float32), len(which))
        skipped = self._update(which, values, td_errors is None)
        if skipped < 0:
            raise ValueError(f"tickets and {name} cannot be read; give NumPy arrays, int64 and float32")
        return skipped

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes all transitions and priorities to a file, while others use the replay.

        The file is whole or not there; it is written beside, as ``.NAME.part``. What is added meanwhile is not in it;
        what makes place for that is not, either.

        Raises:
            OSError: It cannot be written.
            ValueError: There is a file that a replay keeps everything in, this one or another.
        """
        save(Path(path), self._settings, self._arena, self._ring)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Replaces the contents by what :meth:`save` wrote; requires exclusive use of the replay.

        Unfinished episodes end where they were saved, and those that were being added here end too. Earlier tickets
        become invalid. Priorities are those that were saved, whatever their ``alpha``; a uniform replay makes them
        equal.

        Raises:
            OSError: There is no such file.
            ValueError: It is not a saved replay, or one of other fields, capacity, n_step or discount. The replay is
                unchanged, or empty (see the message) if the transitions themselves are damaged.
        """
        load(Path(path), self._settings, self._arena, self._ring)

    def flush(self) -> None:
        """Writes a replay in a file to the disk, so that :meth:`open` trusts it after a power failure, too.

        That holds until the next addition or update, after which only a part may reach the disk. To keep one moment
        while others use the replay, call :meth:`save`.
        """
        flush(self._arena, self._ring)

    def __len__(self) -> int:
        """Transitions that can be drawn."""
        return self._ring.live

    @property
    def nbytes(self) -> int:
        """Bytes of memory, or of the file."""
        return self._arena.nbytes

    @property
    def max_priority(self) -> float:
        """The priority of new transitions."""
        return self._ring.max_priority

    def __repr__(self) -> str:
        kind = f"steps of {self.num_envs} environments" if self._is_linked else "independent transitions"
        names = ", ".join(field.name for field in self.fields)
        return f"PrioritizedReplay({len(self)} of {self.capacity}, {kind}: {names})"


def _attached(cls: type[PrioritizedReplay], arena: Memory, settings: Settings) -> PrioritizedReplay:
    replay = cls.__new__(cls)
    replay._attach(arena, settings)
    return replay
