"""Which environment to run and how; plain data, quick to import (neither Gymnasium nor any simulator)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from rollmill.envs.wrapper_calls import parse_wrappers
from rollmill.scores import scored_task
from rollmill.settings.fields import setting
from rollmill.settings.value_checks import NAME, UNIT_BELOW_ONE, Checked, ConfigError, integer

CAVEATS = "rollmill_caveats"
"""Entry of the metadata of Rollmill's own environments: sentences that a run shows before it begins."""


@dataclass(frozen=True, kw_only=True)
class AtariOptions(Checked, section="env.atari"):
    """How an Atari game is presented (``atari/<game>``).

    The defaults are the protocol of Mnih et al. (2015), as PPO implementations use it (CleanRL, Sample Factory), except
    that nothing is clipped here: rewards are clipped in the learner, so that reported returns are the game's score.

    Attributes:
        sticky_actions: Probability that the console repeats the previous action; 0.25 is the protocol of Machado et
            al. (2018), 0 that of Mnih et al.
        full_action_space: All 18 joystick actions instead of the game's minimal set.
        noop_max: At a reset, 1..noop_max no-op frames are played; 0 or 1 for a fixed start.
        fire_reset: Press FIRE at a reset where the game has such an action.
        life_loss: Losing a life is reported as ``terminated`` (the value's horizon ends), while the game continues
            without a reset and without losing a step; the episode's return is that of the whole game.
        frame_stack: Frames stacked into one observation.
        screen_size: Height and width of the observation in pixels.
        grayscale: One channel a frame; with colour an observation is ``[frame_stack, size, size, 3]``.
        max_frames: Emulator frames after which a game is truncated (108,000 is 30 minutes).
    """

    sticky_actions: float = setting(0.0, UNIT_BELOW_ONE, "(0: Mnih et al., 0.25: Machado et al.)")
    full_action_space: bool = False
    noop_max: int = setting(30, integer(0))
    fire_reset: bool = True
    life_loss: bool = True
    frame_stack: int = setting(4, integer(1))
    screen_size: int = setting(84, integer(1), "(pixels)")
    grayscale: bool = True
    max_frames: int = setting(108_000, integer(1))


@dataclass(frozen=True, kw_only=True)
class VizdoomOptions(Checked, section="env.vizdoom"):
    """How a VizDoom scenario is presented (``vizdoom/<scenario>``).

    The defaults are those of the Sample Factory paper (Petrenko et al. 2020, table A.5): rendered at 160x120, scaled
    to 128x72 by nearest neighbour, RGB, no frame stack.

    Attributes:
        width: Width of the observation in pixels.
        height: Height of the observation in pixels.
        wad: Map of a match (``deathmatch``, ``duel``, ``deathmatch_bots``, ``duel_bots``): a path, ``PATH:MAP``,
            ``"arena"`` for one that Rollmill makes, or ``"paper"`` for the map of the Sample Factory paper where its
            package is installed; None is a map of VizDoom's package.
        bots: Number of bots in a match with bots; None is the scenario's (7, or 1 in a duel).
        players: Number of agents in a match without bots (``duel``: 2, ``deathmatch``: 4), 2 to 8; None is the
            scenario's.
        measurements: Also give the scenario's game variables (health, ammunition, ...), as a float32 vector named
            ``"measurements"``; images are then named ``"obs"`` as before.
        sound: Also give what is heard during the step, named ``"sound"``: int16 ``[2, 630 * frameskip]``, left and
            right, at 22,050 Hz. The engine needs the library OpenAL Soft.
    """

    width: int = setting(128, integer(1), "(pixels)")
    height: int = setting(72, integer(1), "(pixels)")
    measurements: bool = False
    sound: bool = False
    wad: str | None = None
    bots: int | None = setting(None, integer(1), "for the scenario's")
    players: int | None = setting(None, integer(2), "for the scenario's")


@dataclass(frozen=True, kw_only=True)
class DmlabOptions(Checked, section="env.dmlab"):
    """How a level of DeepMind Lab is presented (``dmlab/<level>``).

    The defaults are IMPALA's (Espeholt et al. 2018, arXiv:1802.01561) and those of the Sample Factory paper (Petrenko
    et al. 2020, arXiv:2006.11751, section A.1): frames of 96x72 pixels, RGB, no frame stack.

    Attributes:
        width: Width of the observation in pixels.
        height: Height of the observation in pixels.
        renderer: ``"software"`` renders on the CPU, ``"hardware"`` on a GPU, for which the engine must have been built.
        extended_actions: The 15 actions of Hessel et al. (2019), with which the paper trains DMLab-30, instead of
            IMPALA's nine.
        instructions: Also give the level's instruction, as hashed words in a vector of bytes named ``"instructions"``;
            images are then named ``"obs"``. ``"auto"`` gives it in the ``language_...`` levels; True in all, so that
            all have the same observations.
        reward_clip: Clip rewards smoothly to (-1.5, 5), as IMPALA does. Reported returns are then those of clipped
            rewards. Leave it out with an on-policy algorithm, where ``learner.reward_weights.clip=1`` clips what is
            learned from alone.
        level_cache: Folder in which generated maps are kept; None generates the map of each episode. Its maps are
            loaded by the engine: use a folder that only trusted users can write.
        level_seeds: Number of different seeds that episodes of a level have, so that their maps can be found in the
            cache again; None is the engine's 2^31.
        dataset_path: Folder of the pictures that some ``psychlab_...`` levels show (``brady_konkle_oliva2008``).
    """

    width: int = setting(96, integer(1), "(pixels)")
    height: int = setting(72, integer(1), "(pixels)")
    renderer: Literal["software", "hardware"] = "software"
    extended_actions: bool = False
    instructions: Literal["auto"] | bool = "auto"
    reward_clip: bool = False
    level_cache: str | None = None
    level_seeds: int | None = setting(None, integer(1), "for as many as the engine has")
    dataset_path: str | None = None


@dataclass(frozen=True, kw_only=True)
class EnvConfig(Checked, section="env"):
    """The environment of a run.

    Attributes:
        name: A name given to ``register_env``, ``<family>/<id>`` with family one of ``atari``, ``vizdoom``, ``gym``,
            ``mujoco``, ``minigrid``, ``envpool``, ``pettingzoo``, ``mpe``, ``dmlab``, or a bare Gymnasium id.
        tasks: Several environments that one network learns together, each a name as above; ``name`` is then that of
            the suite, or the names joined. The other settings apply to all of them.
        kwargs: Passed to the environment's constructor.
        wrappers: Wrappers of Gymnasium (https://gymnasium.farama.org/api/wrappers/) around each environment, the
            innermost first: ``"TimeAwareObservation, ResizeObservation(shape=(84, 84))"``. Names with dots are classes
            of an importable module. Native vector environments (``atari/...``, ``envpool/...``) have none.
        frameskip: Simulator frames for each agent step; None takes the family's default (4 for Atari, VizDoom and
            DeepMind Lab) or what was registered. For environments whose step we do not control it only says how frames
            are counted.
        max_episode_steps: Time limit in agent steps; None keeps the environment's own. With a wrapper that repeats
            steps, the steps inside of it count.
        imports: Modules to import first, which register environments of the user's.
        vector: True takes the native vector environment (a Gymnasium id's ``vector_entry_point``), False steps Python
            environments one after another; ``"auto"`` takes Atari's, EnvPool's and those registered with
            ``vector=True``.
        on_failure: ``"stop"`` ends the run at an environment's exception; ``"restart"`` rebuilds the environment, masks
            its rows and continues, at most ``restart_budget`` times. Evaluations do the same.
        restart_budget: Rebuilds allowed for each rollout worker, and in each evaluation.
        check_finite: Look for NaN and infinity in float observations and rewards after every group step.
        atari: Options of ``atari/...``.
        vizdoom: Options of ``vizdoom/...``.
        dmlab: Options of ``dmlab/...``.
    """

    name: str
    tasks: tuple[str, ...] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict)
    wrappers: str = ""
    frameskip: int | None = setting(None, integer(1), "for the family's default")
    max_episode_steps: int | None = setting(None, integer(1), "for the environment's own")
    imports: tuple[str, ...] = ()
    vector: Literal["auto"] | bool = "auto"
    on_failure: Literal["stop", "restart"] = "stop"
    restart_budget: int = setting(10, integer(0))
    check_finite: bool = True
    atari: AtariOptions = field(default_factory=AtariOptions)
    vizdoom: VizdoomOptions = field(default_factory=VizdoomOptions)
    dmlab: DmlabOptions = field(default_factory=DmlabOptions)

    def __post_init__(self) -> None:
        """Refuse values that no environment could follow."""
        super().__post_init__()
        NAME.check("env.name", self.name, " such as 'atari/pong' or 'gym/CartPole-v1'")
        for name in self.tasks:
            NAME.check("env.tasks", name, " such as 'atari/pong' or 'gym/CartPole-v1'")
        if len(set(self.tasks)) < len(self.tasks):
            twice = next(name for name in self.tasks if self.tasks.count(name) > 1)
            raise ConfigError(f"env.tasks names {twice!r} twice: each task is named once.")
        names: dict[str, str] = {}
        for name in self.tasks:
            if (task := scored_task(name)) is not None and (other := names.setdefault(task, name)) != name:
                raise ConfigError(
                    f"env.tasks names {other!r} and {name!r}, which have the same human score and count as one task: "
                    "give one of them."
                )
        parse_wrappers(self.wrappers)

    @property
    def names(self) -> tuple[str, ...]:
        """The environments' names: those of the tasks, or the only one."""
        return self.tasks or (self.name,)

    def of_task(self, task: int) -> EnvConfig:
        """Return the environment of one of the tasks; this one where there are none."""
        return replace(self, name=self.tasks[task], tasks=()) if self.tasks else self
