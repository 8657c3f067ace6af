"""Construction of environments and groups from a configuration."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import gymnasium

from rollmill.envs.agent_apis import is_multi_agent, names_of, with_numbers
from rollmill.envs.agent_group import AgentGroup
from rollmill.envs.checks import check_fit, shown
from rollmill.envs.config import CAVEATS, EnvConfig
from rollmill.envs.errors import (
    EnvironmentFailure,
    InvalidActionMask,
    InvalidReward,
    RollmillEnvError,
    UnknownEnvironment,
    UnsupportedSpace,
    failures,
)
from rollmill.envs.failures import RestartBudget, failure
from rollmill.envs.first_step import try_step, try_turn
from rollmill.envs.player_group import LEGAL_ACTIONS, PlayerGroup, player_names
from rollmill.envs.python_group import PythonGroup
from rollmill.envs.registry import Registration, find_registration
from rollmill.envs.repeating import repeats
from rollmill.envs.shared_spaces import SharedSpaces, mask_in
from rollmill.envs.space_data import encode_spaces
from rollmill.envs.spaces import ACTION_MASK, ObservationCodec, action_spec
from rollmill.envs.stacking import stack_of
from rollmill.envs.task_spaces import spec_of_tasks
from rollmill.envs.user_code import import_user_code
from rollmill.envs.vector_group import VectorGroup, own_seeds
from rollmill.envs.views import SavableGroup
from rollmill.envs.wrapper_calls import WrapperCall, parse_wrappers
from rollmill.envs.wrapping import wrapped
from rollmill.specs import ArraySpec, BoxActions, EnvSpec, FrameStack

FAMILIES = ("atari", "vizdoom", "gym", "mujoco", "minigrid", "envpool", "pettingzoo", "mpe", "dmlab")
# Families whose environments another family's module makes.
_MODULES = {"mujoco": "gym", "mpe": "pettingzoo"}


class Maker(NamedTuple):
    """How a family builds an environment; the result of every family's ``maker(config)``.

    Attributes:
        env: Builds one ``gymnasium.Env``, or an environment with PettingZoo's interface; None if there are only vector
            environments.
        bare_env: ``env`` without the wrappers that a group replaces; None if there are none.
        vector: ``vector(num_envs, num_threads, seeds)`` builds a native vector environment; None if there is none.
        prefer_vector: Whether ``vector="auto"`` selects the native one.
        frameskip: Simulator frames for each agent step.
        max_episode_steps: The time limit in agent steps, where known.
        time_limit: Limit in agent steps that a group of Python environments enforces.
        reset_seed: ``reset_seed(env, seeds)`` returns the argument of a native vector's ``reset(seed=...)``.
        life_key: ``info`` entry of a native vector that counts lives, if losing one is reported.
        stack: The frame stack of a native vector, if known.
        keeps_group_size: ``vector`` is the user's and must only be called with the run's ``envs_per_group``, because
            its rows may belong together (several agents of one game, say).
        has_players: Whether ``vector`` builds a pool of games in which players take turns; see
            :class:`rollmill.envs.player_group.PlayerGroup`.
    """

    env: Callable[[], Any] | None
    bare_env: Callable[[], Any] | None = None
    vector: Callable[[int, int, Sequence[int]], Any] | None = None
    prefer_vector: bool = False
    frameskip: int = 1
    max_episode_steps: int | None = None
    time_limit: int | None = None
    reset_seed: Callable[[Any, Sequence[int]], Any] = own_seeds
    life_key: str | None = None
    stack: FrameStack | None = None
    keeps_group_size: bool = False
    has_players: bool = False


_VERSION = re.compile(r"[-_]v\d+$")


def suggest(name: str, known: Iterable[str], also: Mapping[str, str] | None = None) -> str:
    """``"; did you mean 'a' or 'b'?"``, or an empty string without a similar name.

    Args:
        name: The given name.
        known: Existing names; case is ignored.
        also: Other spellings in lower case -> the name to suggest.
    """
    folded = {**(also or {}), **{k.lower(): k for k in known}}
    # Without versions, which would make short names similar (`MyEnv-v0` and `Alien-v0`). The newest comes first.
    stems: dict[str, list[str]] = {}
    for spelling in sorted(folded, reverse=True):
        stems.setdefault(_VERSION.sub("", spelling), []).append(spelling)
    given = _VERSION.sub("", name.lower())
    near = difflib.get_close_matches(given, stems, n=3, cutoff=0.6)
    # Part of a name is as good as a slip: `DoorKey` means one of the `MiniGrid-DoorKey-...`.
    near = near or sorted((stem for stem in stems if len(given) > 3 and given in stem), key=len)
    names = list(dict.fromkeys(folded[spelling] for stem in near for spelling in stems[stem]))[:3]
    return f"; did you mean {' or '.join(map(repr, names))}?" if names else ""


def resolve_maker(config: EnvConfig) -> Maker:
    """Find the maker of an environment: registrations first, then the families, then Gymnasium's registry.

    Raises:
        UnknownEnvironment: No such name; suggests similar ones.
        MissingExtra: The package that makes it is not installed.
        NoSuchModuleError: One of ``imports`` does not exist.
    """
    for name in config.imports:
        import_user_code(name)
    maker = _own_maker(config)
    calls = parse_wrappers(config.wrappers)
    return _wrapped_maker(maker, calls, config) if calls else maker


def _own_maker(config: EnvConfig) -> Maker:
    """Find the maker of an environment without ``env.wrappers``."""
    registration = find_registration(config.name)
    if registration is not None:
        return _registered_maker(registration, config)
    if config.name.startswith("__main__:"):
        raise UnknownEnvironment(
            f"{config.name!r} was defined in a notebook or at a prompt and is not defined here: run its cell again "
            "and use it from there, or write it to a module (%%writefile my_module.py) and train my_module:NAME"
        )
    family, _, _ = config.name.partition("/")
    if family not in FAMILIES:
        family = "gym"
    module = importlib.import_module(f"rollmill.envs.{_MODULES.get(family, family)}")
    maker = module.maker(config)
    assert isinstance(maker, Maker)
    return maker


def _wrapped_maker(maker: Maker, calls: Sequence[WrapperCall], config: EnvConfig) -> Maker:
    if maker.env is None or config.vector is True:
        raise UnknownEnvironment(
            f"env.wrappers wrap environments in Python, but {config.name!r} is a native vector environment"
            + (": leave env.vector out" if maker.env is not None else ", which has no such form")
        )
    # Not the bare environment: some wrappers ask Gymnasium's own for the time limit.
    inner = maker.env if maker.bare_env is not None else _with_time_limit(maker.env, maker.time_limit)
    return maker._replace(env=wrapped(inner, calls, config.name), bare_env=None, vector=None, prefer_vector=False)


def _with_time_limit(make: Callable[[], Any], limit: int | None) -> Callable[[], Any]:
    def build() -> Any:
        env = make()
        if limit is None or not isinstance(env, gymnasium.Env) or is_multi_agent(env):
            return env
        return gymnasium.wrappers.TimeLimit(env, limit)

    return build


def _registered_maker(entry: Registration, config: EnvConfig) -> Maker:
    kwargs = dict(config.kwargs)
    skip = config.frameskip or entry.frameskip
    if entry.vector:
        if config.max_episode_steps is not None:
            raise UnknownEnvironment(
                f"env.max_episode_steps={config.max_episode_steps} cannot be enforced for {entry.name!r}, a vector "
                "environment of your own, which ends its episodes itself: pass the limit in env.kwargs"
            )

        def vector(num_envs: int, num_threads: int, seeds: Sequence[int]) -> Any:
            return entry.factory(num_envs=num_envs, **kwargs)

        return Maker(env=None, vector=vector, prefer_vector=True, frameskip=skip, keeps_group_size=True)
    limit = config.max_episode_steps
    return Maker(env=lambda: entry.factory(**kwargs), frameskip=skip, max_episode_steps=limit, time_limit=limit)


def _takes_vector(maker: Maker, config: EnvConfig) -> bool:
    native = maker.prefer_vector if config.vector == "auto" else config.vector
    if native and maker.vector is None:
        raise UnknownEnvironment(
            f"env.vector is true, but {config.name!r} has no native vector environment: use 'auto' or false"
        )
    if not native and maker.env is None:
        raise UnknownEnvironment(
            f"env.vector is false, but {config.name!r} has only a native vector environment: use 'auto' or true"
        )
    return bool(native)


def rows_of_group(config: EnvConfig, wanted: int, group_size: int | None) -> int:
    """Number of environments in a group built outside of training: to probe, evaluate or watch.

    Args:
        config: The environment.
        wanted: Number of environments that the caller can use.
        group_size: The run's ``envs_per_group``; None if unknown.

    Returns:
        ``group_size`` for a vector environment of the user's, whose factory must get this number; otherwise ``wanted``.
    """
    maker = resolve_maker(config)
    return group_size if group_size and maker.keeps_group_size and _takes_vector(maker, config) else wanted


def make_env(config: EnvConfig) -> Any:
    """Build one Python environment, to be stepped by the caller: a ``gymnasium.Env``, or one with several agents.

    The latter gets no time limit, which its group enforces.

    Raises:
        UnknownEnvironment: No such name, or it exists only as a vector environment.
        MissingExtra: The package that makes it is not installed.
    """
    maker = resolve_maker(config)
    if maker.env is None:
        raise UnknownEnvironment(f"{config.name!r} has only a native vector environment: use one in Python here")
    return (maker.env if maker.bare_env is not None else _with_time_limit(maker.env, maker.time_limit))()


def make_group(
    config: EnvConfig,
    num_envs: int,
    seeds: Sequence[int],
    first_index: int = 0,
    num_threads: int = 1,
    box: BoxActions = "clip",
    budget: RestartBudget | None = None,
    agents: Sequence[str] = (),
    reward_terms: Sequence[str] = (),
) -> SavableGroup:
    """Build the environments of one group.

    Args:
        config: The environment; of several tasks, one of them.
        num_envs: Number of environments in the group.
        seeds: One seed for each environment.
        first_index: Index of the first one in the whole run, for messages.
        num_threads: Threads that a native vector environment may use.
        box: Conversion of continuous actions (see ``ActionCodec``).
        budget: Rebuilds left under ``on_failure="restart"``, shared by the groups of a worker; None gives this group
            ``config.restart_budget`` of its own.
        agents: Names of an environment's agents (``EnvSpec.agents``), each of which is a row.
        reward_terms: Names of the parts of the reward that are stored (:mod:`rollmill.envs.row_info`).

    Raises:
        UnknownEnvironment: No such name; suggests similar ones.
        MissingExtra: The package that makes it is not installed.
        EnvironmentFailure: A constructor raised; its exception is the cause.
        UnsupportedSpace: Slots do not support the spaces.
    """
    if len(seeds) != num_envs:
        raise ValueError(f"{len(seeds)} seeds were given for {num_envs} environments: give one for each")
    maker = resolve_maker(config)
    budget = budget or RestartBudget(config.restart_budget)
    if _takes_vector(maker, config):
        vector = maker.vector
        assert vector is not None
        if agents and reward_terms:
            raise InvalidReward(
                f"{config.name} is a game of EnvPool's, which gives no reward terms: leave out learner.reward_weights"
            )
        if agents:
            return PlayerGroup(
                lambda chosen: vector(num_envs, num_threads, chosen),
                agents=agents,
                seeds=seeds,
                first_index=first_index,
                name=config.name,
                box=box,
                on_failure=config.on_failure,
                budget=budget,
                check_finite=config.check_finite,
            )
        return VectorGroup(
            lambda chosen: vector(num_envs, num_threads, chosen),
            seeds=seeds,
            first_index=first_index,
            name=config.name,
            reset_seed=maker.reset_seed,
            box=box,
            life_key=maker.life_key,
            on_failure=config.on_failure,
            budget=budget,
            check_finite=config.check_finite,
            reward_terms=reward_terms,
        )
    assert maker.env is not None
    if agents:
        return AgentGroup(
            maker.env,
            agents=agents,
            num_envs=num_envs,
            seeds=seeds,
            first_index=first_index,
            name=config.name,
            box=box,
            max_episode_steps=maker.time_limit,
            on_failure=config.on_failure,
            budget=budget,
            check_finite=config.check_finite,
            reward_terms=reward_terms,
        )
    return PythonGroup(
        maker.bare_env or maker.env,
        num_envs=num_envs,
        seeds=seeds,
        first_index=first_index,
        name=config.name,
        box=box,
        max_episode_steps=maker.time_limit,
        on_failure=config.on_failure,
        budget=budget,
        check_finite=config.check_finite,
        reward_terms=reward_terms,
    )


def probe(config: EnvConfig, *, tries_to_repeat: bool = False, group_size: int | None = None) -> EnvSpec:
    """Build one environment, read its spaces, reset it (for ``info["action_mask"]``), try a step and close it.

    Of several tasks, each is built; their spec has the spaces that they share. With ``on_failure="restart"`` an
    environment whose reset or first step raises is built again, up to ``restart_budget`` times.

    Args:
        config: The environment.
        group_size: The run's ``envs_per_group``, the size of a vector environment of the user's.
        tries_to_repeat: Whether to play a few steps twice, to check that the seed determines them.

    Raises:
        UnknownEnvironment: No such name; suggests similar ones.
        MissingExtra: The package that makes it is not installed.
        EnvironmentFailure: Its constructor, reset or first step raised, and no rebuild is left; its exception is the
            cause.
        UnsupportedSpace: Slots do not support its spaces, or its results do not fit them.
    """
    if config.tasks:
        return spec_of_tasks(
            config.name,
            [probe(config.of_task(task), tries_to_repeat=tries_to_repeat) for task in range(len(config.tasks))],
        )
    maker = resolve_maker(config)
    native = _takes_vector(maker, config)
    seeds = range(rows_of_group(config, 1, group_size))
    budget = RestartBudget(config.restart_budget) if config.on_failure == "restart" else None
    while True:
        try:
            if native:
                assert maker.vector is not None
                env = maker.vector(len(seeds), 1, seeds)
            else:
                assert maker.env is not None
                env = maker.env()
        except RollmillEnvError:
            raise
        except failures() as error:
            # Not built again: wrong arguments are more likely than an accident.
            raise failure(config.name, 0, "constructor", 0, error, None, can_rebuild=False) from error
        try:
            if is_multi_agent(env):
                return _probe_agents(config, maker, env, budget)
            if maker.has_players:
                return _probe_players(config, maker, env, budget)
            return _probe_one(config, maker, env, budget, seeds if native else None, tries_to_repeat=tries_to_repeat)
        except EnvironmentFailure:
            if budget is None or not budget.spend():
                raise
        finally:
            with contextlib.suppress(*failures()):  # training reports it
                env.close()


def _probe_one(
    config: EnvConfig,
    maker: Maker,
    env: Any,
    budget: RestartBudget | None,
    seeds: range | None,
    *,
    tries_to_repeat: bool,
) -> EnvSpec:
    """Find the spec of an environment with Gymnasium's interface, or of a vector of them if there are seeds."""
    native = seeds is not None
    observation_space, action_space = (
        _space(config.name, env, f"single_{kind}" if native else kind) for kind in ("observation_space", "action_space")
    )
    codec = ObservationCodec(observation_space)
    action = action_spec(action_space)
    try:
        first = env.reset(seed=0 if seeds is None else maker.reset_seed(env, seeds))
    except failures() as error:
        raise failure(config.name, 0, "reset", 0, error, budget) from error
    info = _two(config.name, first)[1]
    repeats_itself = None
    if not native:
        check_fit(codec, first[0], config.name, " at its first reset")
        if not codec.has_mask and ACTION_MASK not in info:
            try_step(config.name, env, codec, action, budget)
            repeats_itself = repeats(env) if tries_to_repeat else None
    has_mask = (codec.has_mask or ACTION_MASK in info) and action.num_discrete > 0
    return EnvSpec(
        name=config.name,
        observation=_with_stacks(codec.specs_with_scale(first[0]), maker.stack if native else stack_of(env)),
        action=action,
        has_action_mask=has_mask,
        frameskip=maker.frameskip,
        max_episode_steps=maker.max_episode_steps,
        native_vector=native,
        keeps_group_size=native and maker.keeps_group_size,
        repeats=repeats_itself,
        spaces=encode_spaces(observation_space, action_space, has_action_mask=has_mask),
        caveats=tuple(getattr(env, "metadata", {}).get(CAVEATS, ())),
    )


def _probe_agents(config: EnvConfig, maker: Maker, env: Any, budget: RestartBudget | None) -> EnvSpec:
    """Find the spec of an environment with PettingZoo's interface; see :func:`probe`."""
    try:
        agents = names_of(env)
        spaces = SharedSpaces(config.name, env)
        codec, action = ObservationCodec(spaces.observation), action_spec(spaces.action)
        game = with_numbers(env, agents)
        turn = game.reset(0)
    except RollmillEnvError:
        raise
    except failures() as error:
        raise failure(config.name, 0, "reset", 0, error, budget) from error
    if not turn.acting:
        raise UnsupportedSpace(
            f"{config.name}: no agent acts after a reset: env.agents must hold those that do, and possible_agents all "
            "that ever may"
        )
    if maker.time_limit is not None:
        game.owed(turn.acting[0])  # raises if agents could not be paid at the limit
    masks: dict[str, bool] = {}
    for agent, (observation, info) in turn.shown.items():
        whose = f"{config.name}, agent {agents[agent]!r}"
        check_fit(codec, spaces.pad(observation, agent), whose, " at its first reset")
        masks[agents[agent]] = spaces.own_mask(mask_in(observation, info), agent) is not None
    has_mask = any(masks.values()) and action.num_discrete > 0
    if has_mask and not all(masks.values()):
        given = ", ".join(agent for agent, has_one in masks.items() if has_one)
        others = ", ".join(agent for agent, has_one in masks.items() if not has_one)
        raise InvalidActionMask(
            f"{config.name} gives action masks to {given} and none to {others}: give one to each agent that acts, with "
            "ones where everything is allowed"
        )
    if not any(masks.values()):
        try_turn(config.name, game, spaces, agents, action, budget)
    return EnvSpec(
        name=config.name,
        observation=codec.specs,
        action=action,
        has_action_mask=has_mask,
        agents=agents,
        frameskip=maker.frameskip,
        max_episode_steps=maker.max_episode_steps,
        repeats=None,
        spaces=encode_spaces(spaces.observation, spaces.action, has_action_mask=has_mask),
    )


def _probe_players(config: EnvConfig, maker: Maker, pool: Any, budget: RestartBudget | None) -> EnvSpec:
    """Find the spec of a pool of games; see :func:`probe`."""
    codec, action = ObservationCodec(pool.observation_space), action_spec(pool.action_space)
    try:
        info = pool.reset()[1]
    except failures() as error:
        raise failure(config.name, 0, "reset", 0, error, budget) from error
    has_mask = LEGAL_ACTIONS in info and action.num_discrete > 0
    return EnvSpec(
        name=config.name,
        observation=codec.specs,
        action=action,
        has_action_mask=has_mask,
        agents=player_names(pool, info, config.name),
        frameskip=maker.frameskip,
        max_episode_steps=maker.max_episode_steps,
        native_vector=True,
        spaces=encode_spaces(pool.observation_space, pool.action_space, has_action_mask=has_mask),
    )


def _space(name: str, env: Any, attribute: str) -> Any:
    """Read a space of the environment that the factory returned.

    Raises:
        UnsupportedSpace: There is none: the object is not an environment, did not set it, or has one for each agent.
        EnvironmentFailure: The property raised.
    """
    try:
        space = getattr(env, attribute)
    except AttributeError as error:
        kind = "gymnasium.vector.VectorEnv" if attribute.startswith("single_") else "gymnasium.Env"
        raise UnsupportedSpace(
            f"{name} made {shown(env)} of type {type(env).__name__}, which has no {attribute} ({error}): return "
            f"a {kind} whose constructor sets its {attribute}"
        ) from error
    except failures() as error:
        raise failure(name, 0, attribute, 0, error, None) from error
    if callable(space):
        raise UnsupportedSpace(
            f"{name}: {attribute} is a method, as in PettingZoo's interface, but there are no possible_agents: set "
            "possible_agents in the constructor to the list of all agents that may ever act; in an environment with "
            f"one agent, set {attribute} to a gymnasium.spaces.Space"
        )
    return space


def _with_stacks(specs: Mapping[str, ArraySpec], stack: FrameStack | None) -> dict[str, ArraySpec]:
    """Add the frame stack to the specs of stacked observations."""
    return {
        name: replace(spec, stack=stack)
        if stack is not None and spec.shape[0] == stack.depth and not spec.one_hot
        else spec
        for name, spec in specs.items()
    }


def _two(name: str, first: Any) -> tuple[Any, Any]:
    if not (isinstance(first, tuple) and len(first) == 2 and isinstance(first[1], dict)):
        kind = type(first).__name__
        if isinstance(first, tuple):
            kind += f" of ({', '.join(type(part).__name__ for part in first)})"
        raise UnsupportedSpace(
            f"{name}: reset returned {kind} instead of (observation, info), where info is a dict: Gymnasium 1.x is "
            "needed; environments of the old gym can be wrapped with shimmy"
        )
    return first
