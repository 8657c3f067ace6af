"""Tournaments: every pair of players meets in every seat, an exact number of times."""

from __future__ import annotations

import itertools
import re
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from rollmill.envs.config import EnvConfig
from rollmill.envs.factory import make_group, probe
from rollmill.envs.views import AgentRows
from rollmill.evaluation.agent import Agent, AgentError, import_network
from rollmill.evaluation.evaluate import EvaluationInterruptedError, quotas, side_by_side
from rollmill.evaluation.lineup import Lineup, scripted_player
from rollmill.evaluation.players import PLAYERS, AgentPlayer, Player, player_factory
from rollmill.evaluation.repeated_games import RepeatedGames
from rollmill.evaluation.rows import play, warn_of_failures
from rollmill.evaluation.snapshot import Snapshot, folder_of_player, policies_of_run, read_snapshot, require_trusted
from rollmill.evaluation.stage import NotRenderableError
from rollmill.evaluation.tasks import spec_of
from rollmill.evaluation.tournament_result import Score, TournamentResult, elo
from rollmill.evaluation.video import film_episode
from rollmill.extras import check_extra
from rollmill.models.device import one_thread
from rollmill.runtime.seeds import int_seed
from rollmill.settings.value_checks import check_integer
from rollmill.specs import BoxActions, EnvSpec
from rollmill.storage.population_config import POLICIES_FOLDER

_MOST_GAMES_AT_ONCE = 64
_TAKEN_FOR_ENDLESS = 200_000
_LONGEST_NAME = 150


class TournamentError(ValueError):
    """Players that cannot meet."""


class _Meeting(NamedTuple):
    """Matches of two players.

    Attributes:
        scores: The score of the first one with each team.
        repeated: With each team, whether all matches were the same game.
    """

    scores: list[Score]
    repeated: list[bool]


def tournament(
    players: Sequence[Path | str],
    *,
    env: str | None = None,
    matches: int = 100,
    seed: int = 0,
    deterministic: bool | None = None,
    device: str = "cpu",
    is_stop_wanted: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda text: None,
    videos: Path | str | None = None,
    trust: bool = False,
) -> TournamentResult:
    """Let players meet: every pair, with the first one in every seat and the other one in all other seats.

    A match is won by the player with the higher return; that of several seats is the mean over the agents that acted.

    Args:
        players: Run directories, checkpoint files, "random", and names given to :func:`register_player`; a run of
            several policies stands for all of them. At least two.
        env: The environment; None is that of all runs. Players trained on others can play if their spaces are equal.
            Its options are those of the first run on it, or else, as far as they suit it, those of the first run.
        matches: Matches of each pair in each seat.
        seed: Keys the environments and the sampling of actions.
        deterministic: As in ``Agent.act``.
        device: Device of the networks.
        is_stop_wanted: Called at every step; True interrupts the tournament.
        say: Called with a line for each pair.
        videos: Also film a match of each pair, with the first one in the first seat, into this folder.
        trust: Whether to execute code that run directories name even if this user's runs did not write it.

    Raises:
        MissingPackageError: ``videos`` was given, and the packages that write them are not installed.
        TournamentError: Fewer than two players, no environment, or one with a single agent.
        NoRunError: A player is neither a run nor a registered name.
        UntrustedError: A directory names such code, without ``trust``.
        ValueError: ``matches`` is below 1.
    """
    check_integer("matches", matches, 1)
    if videos is not None:
        check_extra("video", "a video")
    players = [each for player in players for each in _policies_of(player)]
    if len(players) < 2:
        raise TournamentError(f"{len(players)} player(s) were given: at least two are needed for a match")
    snapshots = {player: _snapshot(player, trust=trust) for player in players if not _is_scripted(player)}
    configs = [snapshot.env for snapshot in snapshots.values()]
    if env is None and not configs:
        raise TournamentError("none of the players is a run: name the environment (--env NAME)")
    # The options of the environment are those that a player was trained with.
    chosen = configs[:1] if env is None else [config for config in configs if config.name == env]
    if env is not None and not chosen:
        chosen = [_of_another(configs[0], env) if configs else EnvConfig(name=env)]
    config = chosen[0]
    elsewhere = {each.env.name: each for each in snapshots.values() if each.env.name != config.name}
    if elsewhere and env is None:
        raise TournamentError(
            f"the players were trained on {', '.join(map(repr, [config.name, *elsewhere]))}: name the environment of "
            "the matches (--env NAME), whose spaces must be those of the others"
        )
    spec = probe(config)
    if len(spec.agents) < 2:
        raise TournamentError(f"{config.name} has one agent: matches need an environment with two or more")
    for home, trained in elsewhere.items():
        _check_spaces(spec_of([trained], trained.env), spec, f"a player was trained on {home!r}, whose")
    boxes = {snapshot.box_actions for snapshot in snapshots.values()} or {"clip"}
    if not spec.action.num_continuous:
        boxes = {"clip"}  # Choices are stored alike.
    if len(boxes) > 1:
        raise TournamentError("the players' networks store continuous actions in different units and cannot meet")
    (box,) = boxes
    names = names_of(players)
    with one_thread():
        hall = _Hall(config, spec, box, seed=seed, is_stop_wanted=is_stop_wanted)
        made: list[Player] = []
        for index, player in enumerate(players):
            snapshot, key = snapshots.get(player), int_seed(seed, "player", index)
            made.append(hall.player(str(player), snapshot, key, device=device, deterministic=deterministic))
        started = time.perf_counter()
        scores: dict[tuple[int, int, int], Score] = {}
        doubts: list[str] = []
        for one, other in itertools.combinations(range(len(made)), 2):
            found, repeated = hall.meet(made[one], made[other], matches)
            doubts += _doubts(names[one], names[other], spec.agents, repeated)
            if len(found) == 2:
                # The same matches tell how the other one did.
                back = [found[1].back, found[0].back]
            else:
                back, repeated = hall.meet(made[other], made[one], matches)
                doubts += _doubts(names[other], names[one], spec.agents, repeated)
            for seat, (score, reverse) in enumerate(zip(found, back, strict=True)):
                scores[one, other, seat] = score
                scores[other, one, seat] = reverse
            share = sum(score.share for score in found) / len(found)
            say(f"{names[one]} against {names[other]}: {share:.3f}")
        seconds = time.perf_counter() - started
        films: dict[tuple[int, int], str] = {}
        for one, other in itertools.combinations(range(len(made)), 2) if videos is not None else ():
            # The numbers keep names apart that differ in other characters only.
            name = re.sub(r"[^\w.+-]+", "-", f"{one + 1}-{other + 1}-{names[one]}-against-{names[other]}")
            path = Path(str(videos)) / f"{name[:_LONGEST_NAME]}.mp4"
            if hall.film(made[one], made[other], path):
                films[one, other] = str(path)
    result = TournamentResult(
        env=config.name,
        players=names,
        seats=spec.agents,
        scores=scores,
        seconds=seconds,
        seed=seed,
        videos=films,
        warnings=tuple(doubts),
    )
    return replace(result, ratings=elo(result))


def _of_another(config: EnvConfig, name: str) -> EnvConfig:
    """The options of an environment for another one, without those that only it may have."""
    vizdoom = replace(config.vizdoom, wad=None, bots=None, players=None)
    return replace(config, name=name, tasks=(), kwargs={}, wrappers="", vector="auto", vizdoom=vizdoom)


def points_against(
    snapshot: Snapshot,
    opponents: Sequence[str],
    *,
    matches: int,
    seed: int = 0,
    is_stop_wanted: Callable[[], bool] = lambda: False,
    trust: bool = False,
    seats: Sequence[int] | None = None,
) -> dict[str, float]:
    """Let a network meet opponents, in every seat or in its own ones.

    Args:
        snapshot: The network.
        opponents: Run directories, checkpoint files, "random" and registered names.
        matches: Matches with each opponent; without ``seats``, in each seat.
        seed: Keys the environments and the sampling of actions.
        is_stop_wanted: Called at every step; True interrupts the matches.
        trust: As in :func:`tournament`.
        seats: The agents that the network plays in every match, by index; the opponent plays the others. None lets it
            play each agent in turn, alone.

    Returns:
        Short name of an opponent (:func:`names_of`) -> the network's share of the points: 1 for a win, 1/2 for a draw.

    Raises:
        EvaluationInterruptedError: ``is_stop_wanted`` returned True.
        TournamentError: An opponent stores continuous actions in other units.
    """
    config, box = snapshot.env, snapshot.box_actions
    spec = probe(config)
    hall = _Hall(config, spec, box, seed=seed, is_stop_wanted=is_stop_wanted)
    own = hall.player("the policy", snapshot, seed)
    points = {}
    for index, (opponent, name) in enumerate(zip(opponents, names_of(opponents), strict=True)):
        found = None if _is_scripted(opponent) else _snapshot(opponent, trust=trust)
        if found is not None:
            _check_units(opponent, found, spec, box)
        player = hall.player(opponent, found, int_seed(seed, "opponent", index))
        scores, _ = hall.meet(own, player, matches, None if seats is None else [seats])
        points[name] = sum(score.share for score in scores) / len(scores)
    return points


def check_opponents(opponents: Sequence[str], spec: EnvSpec, box: BoxActions, *, trust: bool = False) -> None:
    """Check that a policy can meet these opponents.

    Args:
        opponents: Run directories, checkpoint files, "random" and registered names.
        spec: The environment.
        box: Conversion of the policy's continuous actions.
        trust: Whether to execute code that an opponent's directory names even if this user's runs did not write it.

    Raises:
        TournamentError: The environment has one agent, or an opponent stores continuous actions in other units.
        PlayerError: A name is neither registered nor a path.
        NoRunError: A path is no run of one policy and no checkpoint.
        UntrustedError: Code is needed without ``trust``.
        NoSuchModuleError: A module of an opponent's network is no longer there.
    """
    if opponents and len(spec.agents) < 2:
        raise TournamentError(
            f"eval_against={','.join(opponents)}, but {spec.name} has one agent: opponents need an environment with "
            "several agents"
        )
    for opponent in opponents:
        if _is_scripted(opponent):
            continue
        if not Path(opponent).exists():
            player_factory(opponent, "eval_against")
        _check_units(opponent, _snapshot(opponent, trust=trust), spec, box)


def _check_units(opponent: str, snapshot: Snapshot, spec: EnvSpec, box: BoxActions) -> None:
    if spec.action.num_continuous and snapshot.box_actions != box:
        raise TournamentError(
            f"the opponent {opponent} (eval_against) stores continuous actions in other units "
            f"({snapshot.box_actions}) than this run ({box}): use a run with the same model.squash_actions and "
            "model.scale_actions (off-policy algorithms scale actions)"
        )


def _check_spaces(found: EnvSpec, wanted: EnvSpec, whose: str) -> None:
    for what in ("observation", "action", "has_action_mask"):
        given, needed = getattr(found, what), getattr(wanted, what)
        if given != needed:
            raise TournamentError(
                f"{whose} {what.replace('_', ' ')} is {given}, but that of {wanted.name!r} is {needed}: players of "
                "other environments can meet if these are equal"
            )


class _Hall:
    """Where pairs of players meet."""

    def __init__(
        self, config: EnvConfig, spec: EnvSpec, box: BoxActions, *, seed: int, is_stop_wanted: Callable[[], bool]
    ) -> None:
        self._config = config
        self._spec = spec
        self._box = box
        self._seed = seed
        self._is_stop_wanted = is_stop_wanted
        self._meetings = 0

    def player(
        self,
        name: str,
        snapshot: Snapshot | None,
        seed: int,
        *,
        device: str = "cpu",
        deterministic: bool | None = None,
    ) -> Player:
        """Build a player: a trained one from its snapshot, or without one the scripted player of this name."""
        if snapshot is not None:
            return AgentPlayer(name, self._agent(snapshot, device, seed), deterministic=deterministic)
        return scripted_player(name, self._spec.action, self._box, seed)

    def _agent(self, snapshot: Snapshot, device: str, seed: int) -> Agent:
        group = make_group(self._config, 1, [0], box=self._box, agents=self._spec.agents)
        try:
            return Agent(snapshot, group.observation_space, group.action_space, device=device, seed=seed)
        except AgentError as error:
            raise TournamentError(str(error)) from error
        finally:
            group.close()

    def meet(self, one: Player, other: Player, matches: int, teams: Sequence[Sequence[int]] | None = None) -> _Meeting:
        """Let two players meet, ``one`` with each of some teams and the other one with all other seats.

        Args:
            one: A player.
            other: Another one.
            matches: Matches with each team.
            teams: Seats that ``one`` has at the same time; None for each seat alone.
        """
        agents = len(self._spec.agents)
        teams = [(seat,) for seat in range(agents)] if teams is None else teams
        # Row by row of this table: a game, whose row says how many matches are played with which team.
        quota = quotas(matches, games_for_each_seat(self._config.name, agents))
        games = [(team, count) for count in quota for team in range(len(teams))]
        self._meetings += 1
        seeds = [int_seed(self._seed, f"meeting {self._meetings}", game) for game in range(len(games))]
        # Environments with several agents have such groups.
        group = cast("AgentRows", make_group(self._config, len(games), seeds, box=self._box, agents=self._spec.agents))
        scores = [Score(0, 0, 0)] * len(teams)
        traced = RepeatedGames(group, np.array([team for team, _ in games]))
        try:
            for team, returns in self._returns(group, traced, one, other, games, teams):
                seats = list(teams[team])
                own, mean = _mean_of(returns[seats]), _mean_of(np.delete(returns, seats))
                scores[team] = scores[team].plus(Score(int(own > mean), int(own == mean), int(own < mean)))
            warn_of_failures(group)
        finally:
            group.close()
        return _Meeting(scores, [traced.is_repeated(team) for team in range(len(teams))])

    def film(self, one: Player, other: Player, path: Path) -> bool:
        """Film a match with ``one`` in the first seat; False, with a warning, if that fails."""
        seats = [(0,), *[(1,)] * (len(self._spec.agents) - 1)]
        self._meetings += 1
        seed = int_seed(self._seed, f"meeting {self._meetings}", 0)
        try:
            film_episode(Lineup((one, other), (), self._box, None, seats), self._config, path, seed)
        except Exception as error:
            # Keep the results if rendering fails.
            name = "" if isinstance(error, NotRenderableError) else f"{type(error).__name__}: "
            warnings.warn(f"no video was written: {name}{error}", stacklevel=2)
            return False
        return True

    def _returns(
        self,
        group: AgentRows,
        traced: RepeatedGames,
        one: Player,
        other: Player,
        games: Sequence[tuple[int, int]],
        teams: Sequence[Sequence[int]],
    ) -> list[tuple[int, NDArray[np.float64]]]:
        """Play all games; returns the team of ``one`` and the returns of all seats of each match."""
        seats, rows = len(self._spec.agents), group.num_rows
        who = np.ones(rows, np.int64)
        who[[game * seats + seat for game, (team, _) in enumerate(games) for seat in teams[team]]] = 0
        steps = play((one, other), who, traced, self._spec)
        missing = [count for _, count in games]
        ends = np.full((len(games), seats), np.nan)
        age = np.zeros(len(games), np.int64)
        found: list[tuple[int, NDArray[np.float64]]] = []
        begun, rebuilt = group.episodes.copy(), group.rebuilds
        while any(missing):
            if self._is_stop_wanted():
                raise EvaluationInterruptedError(f"{sum(missing)} matches were not played")
            outcome = next(steps)
            ended = (outcome.episode_length > 0).reshape(len(games), seats)
            ends[ended] = outcome.episode_return.reshape(len(games), seats)[ended]
            age += 1
            ends[group.rebuilds > rebuilt] = np.nan  # A match that has failed is played again.
            rebuilt = group.rebuilds
            over = np.flatnonzero((group.episodes > begun) | group.resets_next)
            for game in over.tolist():
                if np.isfinite(ends[game]).any():
                    if missing[game]:
                        missing[game] -= 1
                        found.append((games[game][0], ends[game].copy()))
                        traced.end(game, np.nan_to_num(ends[game], nan=0.0))
                    ends[game] = np.nan
                traced.begin(game)
                age[game] = 0
            begun = group.episodes.copy()
            if age.max() >= _TAKEN_FOR_ENDLESS:
                raise TournamentError(
                    f"a match of {self._config.name!r} has not ended after {_TAKEN_FOR_ENDLESS:,} steps: give the "
                    "environment a time limit"
                )
        return found


def _mean_of(returns: NDArray[np.float64]) -> float:
    """The mean over the agents that acted; 0 if none did."""
    of_acting = returns[np.isfinite(returns)]
    return float(of_acting.mean()) if of_acting.size else 0.0


def _doubts(one: str, other: str, seats: Sequence[str], repeated: Sequence[bool]) -> list[str]:
    """Return a warning for each seat in which all matches were the same game."""
    return [
        f"all matches of {one} as {seat} against {other} were the same game, because neither the players nor the "
        "environment vary: they count as one match, and their interval means nothing. Let players sample their "
        "actions, or games begin differently"
        for seat, is_repeated in zip(seats, repeated, strict=True)
        if is_repeated
    ]


def games_for_each_seat(env: str, seats: int) -> int:
    """Return how many games are played side by side with the first player in the same seat.

    Args:
        env: The environment's name.
        seats: Its agents.
    """
    return max(1, side_by_side(env, seats, _MOST_GAMES_AT_ONCE) // seats)


def _policies_of(player: Path | str) -> list[Path | str]:
    """Return the directories of a run's policies if it has several, else the player."""
    return [Path(player) / POLICIES_FOLDER / name for name in policies_of_run(player)] or [player]


def _is_scripted(player: Path | str) -> bool:
    return isinstance(player, str) and player in PLAYERS


def _snapshot(player: Path | str, *, trust: bool) -> Snapshot:
    path = Path(player)
    if not path.exists():
        player_factory(str(player))  # raises, with similar names
    run_dir, checkpoint = folder_of_player(path)
    snapshot = read_snapshot(run_dir, checkpoint)
    require_trusted(run_dir, snapshot, trust=trust)
    import_network(run_dir, snapshot, trust=trust)
    return snapshot


def _short_name(path: Path) -> str:
    if path.is_file():
        folder = path.parents[1] if path.parent.name == "checkpoints" else path.parent
        return f"{_short_name(folder)}/{path.stem}"
    return f"{path.parents[1].name}/{path.name}" if path.parent.name == POLICIES_FOLDER else path.name


def names_of(players: Sequence[Path | str]) -> tuple[str, ...]:
    """Short names that differ: of a run, a policy and a checkpoint, with a number where one is taken."""
    names: list[str] = []
    for player in players:
        name = str(player) if _is_scripted(player) else _short_name(Path(player).resolve())
        same = sum(taken == name or taken.startswith(f"{name} (") for taken in names)
        names.append(f"{name} ({same + 1})" if same else name)
    return tuple(names)
