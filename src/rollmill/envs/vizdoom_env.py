"""A VizDoom game as a Gymnasium environment (the package's own wrapper imports pygame)."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rollmill.envs.config import CAVEATS
from rollmill.envs.doom_ports import Port
from rollmill.envs.doom_scenarios import TICS_PER_SECOND, Scenario, missing_engine
from rollmill.envs.doom_sound import check_sound, enable_sound, heard, sound_space
from rollmill.envs.doom_start import start_engine
from rollmill.envs.doom_status import MEASUREMENTS, Status
from rollmill.envs.errors import UnsupportedSpace
from rollmill.envs.views import Array
from rollmill.runtime.sweep import FOLDERS

try:
    import cv2
    import vizdoom
    from vizdoom import Button, DoomGame, GameVariable, ScreenFormat, ScreenResolution
except ImportError as error:
    raise missing_engine(error) from error

# A worker owns one core; OpenCV would otherwise start a pool of threads in each worker.
cv2.setNumThreads(1)

# Mutually exclusive buttons share one head, as in Sample Factory's action spaces for VizDoom.
_EXCLUSIVE = (
    ("TURN_LEFT", "TURN_RIGHT"),
    ("MOVE_FORWARD", "MOVE_BACKWARD"),
    ("MOVE_LEFT", "MOVE_RIGHT"),
    (*(f"SELECT_WEAPON{i}" for i in range(10)), "SELECT_NEXT_WEAPON", "SELECT_PREV_WEAPON"),
)
_TURN_DELTA = "TURN_LEFT_RIGHT_DELTA"
# Rules of the paper's matches: come back by yourself, unhurt for two seconds and far from others; no help with aiming,
# no jumping, crouching, looking up and down or leaving; no time limit of the engine's own.
_MATCH_RULES = (
    "-deathmatch +sv_forcerespawn 1 +sv_noautoaim 1 +sv_respawnprotect 1 +sv_spawnfarthest 1 +sv_nocrouch 1 "
    "+sv_nojump 1 +sv_nofreelook 1 +sv_noexit 1 +viz_nocheat 1"
)
# Degrees; Sample Factory's Discretized(11, -10, 10).
_TURN_ANGLES = tuple(float(v) for v in np.linspace(-10, 10, 11))


class VizdoomEnv(gymnasium.Env[Any, Any]):
    """A single-player scenario, as in the Sample Factory paper.

    Observation: uint8 ``[height, width, 3]`` (RGB), scaled from the engine's frame by nearest neighbour; with
    ``measurements`` a dict of ``"obs"`` and float32 ``"measurements"`` (the scenario's game variables, each divided by
    100), and with ``sound`` also, or only, of ``"sound"`` (see :func:`rollmill.envs.doom_sound.sound_space`).

    Action: ``Discrete(1 + buttons)`` (nothing, or one button) with ``actions="flat"``; ``MultiDiscrete`` with
    ``"heads"``: mutually exclusive buttons share a head whose choice 0 is none of them, every other button has a
    head of two choices, and turning by an angle has eleven, from -10 to 10 degrees.

    The environment replaces the engine's own time limit, because the engine has no frame after it has ended an episode:
    a truncated episode returns its true final observation. After a death the last frame is repeated, with a scenario's
    measurements after the death; neither is bootstrapped from.

    Attributes:
        button_heads: For each head, the button values of each choice: button index -> value.
    """

    def __init__(
        self,
        config_file: str | None = None,
        *,
        scenario: Scenario | None = None,
        frameskip: int = 4,
        width: int = 128,
        height: int = 72,
        measurements: bool = False,
        sound: bool = False,
        actions: str = "flat",
        resolution: str = "160x120",
        last_step: int | None = None,
        render_mode: str | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        """Load the scenario; the engine's process starts with the first reset.

        Args:
            config_file: A ``.cfg`` file; a bare name is one of the package's scenarios. None with ``scenario``.
            scenario: What to tell the engine instead; the step then has reward terms, and ``measurements`` is the
                vector of :mod:`rollmill.envs.doom_status`.
            frameskip: Tics for each step.
            width: Width of the observation.
            height: Height of the observation.
            measurements: Whether to include the game variables.
            sound: Whether to include what is heard during the step.
            actions: ``"flat"`` or ``"heads"``.
            resolution: The engine's resolution, for example ``"160x120"`` or ``"640x480"``.
            last_step: The step after which the caller ends an episode; a scenario's metrics are given with it.
            render_mode: ``"rgb_array"`` or None; ``render`` returns the engine's frame unscaled.
            settings: The engine's settings by the names of its ``set_...`` methods, for example
                ``{"doom_skill": 5, "doom_map": "map01"}``.

        Raises:
            ValueError: Unknown ``actions``, ``resolution`` or ``settings``, a value that a setting does not take, or a
                missing file.
            MissingExtra: The engine gives no sound.
            UnsupportedSpace: The scenario's buttons leave nothing to choose.
        """
        if actions not in ("flat", "heads"):
            raise ValueError(f"actions is {actions!r}: 'flat' or 'heads' is allowed")
        if (config_file is None) == (scenario is None):
            raise ValueError("give a config_file or a scenario")
        if sound:
            check_sound()
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": TICS_PER_SECOND / frameskip}
        self.render_mode = render_mode
        self._frameskip = frameskip
        self._size = (width, height)
        self._measurements = measurements
        self._hears = sound
        self._started = False
        self._game = game = DoomGame()
        # The engine writes its settings to a file when it ends; use one that is deleted with this process.
        self._settings_file = os.memfd_create("vizdoom.ini")
        game.set_doom_config_path(f"/proc/{os.getpid()}/fd/{self._settings_file}")
        self._bots, self._status, self._port = 0, None, None
        turns = _TURN_ANGLES
        if config_file is not None:
            game.load_config(_path_of(config_file))
        elif scenario is not None:
            add_scenario(game, scenario)
            self._bots, self._status, turns = scenario.bots, Status(), turns_of(scenario)
            if scenario.bots:
                self._port = Port()
                game.add_game_args(f"-host 1 -port {self._port.number} {match_rules(scenario)} +name Agent +colorset 0")
        with_screen(game, resolution)
        if sound:
            enable_sound(game, frameskip)
        for name, value in (settings or {}).items():
            setter = getattr(game, f"set_{name}", None)
            if setter is None:
                raise ValueError(f"the engine has no setting {name!r}: see the set_... methods of vizdoom.DoomGame")
            try:
                setter(value)
            except TypeError as error:  # The engine's has many lines.
                signature = setter.__doc__.partition("\n")[0]
                raise ValueError(
                    f"the engine's setting {name!r} is {value!r} ({type(value).__name__}), which its method does not "
                    f"take: {signature}"
                ) from error
        self._timeout = int(game.get_episode_timeout())
        game.set_episode_timeout(0)
        buttons = list(game.get_available_buttons())
        self._num_buttons = len(buttons)
        heads = _flat_head(buttons) if actions == "flat" else button_heads(buttons, turns)
        if not any(len(head) > 1 for head in heads):
            raise UnsupportedSpace(
                f"the buttons {', '.join(button.name for button in buttons) or '(none)'} leave nothing to choose with "
                f"actions={actions!r}: of buttons that take a number (_DELTA), only {_TURN_DELTA} is used, with "
                "actions='heads'; give the scenario buttons that are pressed"
            )
        self.button_heads = heads
        # Scenarios of the package are trained with fewer buttons by intention.
        unused = _unused(buttons, heads) if config_file and os.path.dirname(config_file) else []
        if unused:
            self.metadata[CAVEATS] = (
                f"no action uses the button(s) {', '.join(unused)}, which take a number. Actions press buttons, and "
                "env.kwargs.actions=heads also turns by TURN_LEFT_RIGHT_DELTA: give the scenario such buttons "
                "(MOVE_LEFT and MOVE_RIGHT, for example)",
            )
        self._flat = actions == "flat"
        if self._flat:
            self._flat_actions = [self._buttons((choice,)) for choice in range(len(heads[0]))]
            self.action_space: spaces.Space[Any] = spaces.Discrete(len(heads[0]))
        else:
            self.action_space = spaces.MultiDiscrete([len(head) for head in heads])
        image = spaces.Box(0, 255, (height, width, 3), np.uint8)
        self._num_variables = len(list(game.get_available_game_variables()))
        entries: dict[str, spaces.Space[Any]] = {"obs": image}
        if measurements:
            if not self._num_variables:
                for variable in (GameVariable.HEALTH, GameVariable.AMMO2):
                    game.add_available_game_variable(variable)
                self._num_variables = 2
            size = self._num_variables if self._status is None else MEASUREMENTS
            entries["measurements"] = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        if sound:
            entries["sound"] = sound_space(frameskip)
        self.observation_space: spaces.Space[Any] = spaces.Dict(entries) if len(entries) > 1 else image
        self._last_step = last_step
        self._tics, self._steps = 0, 0
        self._total = 0.0
        self._screen: Array = np.zeros((game.get_screen_height(), game.get_screen_width(), 3), np.uint8)
        self._variables: Array | None = np.zeros(self._num_variables, np.float32)
        self._sound: Array | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode with a seed from the environment's generator."""
        super().reset(seed=seed)
        game = self._game
        engine_seed = int(self.np_random.integers(2**32, dtype=np.uint32))
        game.set_seed(engine_seed)
        if self._started:
            game.new_episode()
        else:
            # The engine creates a folder in its working directory that it does not need later.
            with tempfile.TemporaryDirectory(prefix=FOLDERS) as folder, contextlib.chdir(folder):
                start_engine(game)
            self._started = True
            if self._hears:
                # The noise of the first one would differ from that of later ones.
                game.set_seed(engine_seed)
                game.new_episode()
        if self._bots:
            game.send_game_command("removebots")  # They are gone, or those of the last episode.
            for _ in range(self._bots):
                game.send_game_command("addbot")
        self._tics, self._steps = int(game.get_episode_time()), 0
        self._look()
        if self._status is not None:
            assert self._variables is not None
            self._status.begin(self._variables)
            self._total = 0.0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Hold the buttons for ``frameskip`` tics, or until the time limit."""
        game = self._game
        skip = self._frameskip
        if self._timeout:
            skip = min(skip, max(self._timeout - self._tics, 1))
        buttons = self._flat_actions[action] if self._flat else self._buttons(action)
        reward = game.make_action(buttons, skip)
        self._tics += skip
        self._steps += 1
        terminated = game.is_episode_finished()
        truncated = False
        if not terminated:
            self._look()
            truncated = self._timeout > 0 and self._tics >= self._timeout
        if self._status is None:
            return self._observation(), reward, terminated, truncated, {}
        if terminated:  # There is no state any more, but the variables have what happened in the last tics.
            self._variables = np.array([game.get_game_variable(v) for v in game.get_available_game_variables()])
        assert self._variables is not None
        frags, terms = self._status.take(self._variables, is_last=terminated or truncated)
        reward = frags if self._bots else reward
        self._total += reward
        # At every step, because a time limit of the run's may make it the last one.
        info: dict[str, Any] = {"reward_terms": terms, "true_objective": self._total}
        if terminated or truncated or self._steps == self._last_step:
            info["metrics"] = self._status.totals
        return self._observation(), reward, terminated, truncated, info

    def render(self) -> Any:
        """The engine's frame, uint8 ``[H, W, 3]``."""
        return self._screen.copy()

    def close(self) -> None:
        """End the engine's process."""
        if self._started:
            self._started = False
            self._game.close()
        if self._port is not None:
            self._port.close()
        if self._settings_file >= 0:
            os.close(self._settings_file)
            self._settings_file = -1

    def _look(self) -> None:
        state = self._game.get_state()
        assert state.screen_buffer is not None
        self._screen = state.screen_buffer
        if self._measurements or self._status is not None:
            self._variables = state.game_variables
        if self._hears:
            self._sound = heard(state.audio_buffer)

    def _observation(self) -> Any:
        image = cv2.resize(self._screen, self._size, interpolation=cv2.INTER_NEAREST)
        if not self._measurements and not self._hears:
            return image
        observation = {"obs": image}
        if self._measurements and self._status is not None:
            observation["measurements"] = self._status.measurements()
        elif self._measurements:
            observation["measurements"] = np.asarray(self._variables, np.float32) / 100
        if self._sound is not None:
            observation["sound"] = self._sound
        return observation

    def _buttons(self, choices: Any) -> list[float]:
        return pressed(self.button_heads, choices, self._num_buttons)


def _path_of(config_file: str) -> str:
    path = config_file if os.path.dirname(config_file) else os.path.join(vizdoom.scenarios_path, config_file)
    if not os.path.isfile(path):
        raise ValueError(f"there is no scenario file {path}: give a path, or the name of one of the package's")
    return os.path.abspath(path)


def with_screen(game: DoomGame, resolution: str) -> DoomGame:
    """Let an engine draw frames of this size, and nothing else, without a window and sound."""
    game.set_window_visible(False)
    game.set_sound_enabled(False)
    game.set_mode(vizdoom.Mode.PLAYER)
    game.set_screen_format(ScreenFormat.RGB24)
    game.set_screen_resolution(_resolution(resolution))
    for extra in ("depth", "labels", "automap", "audio", "notifications"):
        getattr(game, f"set_{extra}_buffer_enabled")(False)
    return game


def add_scenario(game: DoomGame, scenario: Scenario) -> None:
    """Tell an engine about a scenario: its map, length, buttons and variables."""
    game.set_episode_timeout(scenario.tics)
    game.set_doom_scenario_path(scenario.wad)
    game.set_doom_map(scenario.map)
    game.set_doom_skill(scenario.skill)
    for button in scenario.buttons:
        game.add_available_button(getattr(Button, button))
    for variable in Status.VARIABLES:
        game.add_available_game_variable(getattr(GameVariable, variable))
    game.set_render_hud(False)


def match_rules(scenario: Scenario) -> str:
    """Return the arguments of the engine that hosts a match."""
    return f"{_MATCH_RULES} +viz_respawn_delay {scenario.respawn_delay}"


def turns_of(scenario: Scenario) -> tuple[float, ...]:
    """Return the angles, in degrees, that a player may turn by."""
    number, largest = scenario.turns
    return tuple(float(angle) for angle in np.linspace(-largest, largest, number))


def pressed(heads: Sequence[Sequence[Mapping[int, float]]], choices: Any, num_buttons: int) -> list[float]:
    """Return the value of each button.

    Args:
        heads: For each head, the buttons of each choice, as :func:`button_heads` gives them.
        choices: A choice for each head.
        num_buttons: Number of buttons.
    """
    values = [0.0] * num_buttons
    for head, choice in zip(heads, choices, strict=True):
        for button, value in head[choice].items():
            values[button] = value
    return values


def _resolution(name: str) -> Any:
    found = getattr(ScreenResolution, f"RES_{name.upper()}", None)
    if found is None:
        known = ", ".join(n.removeprefix("RES_").lower() for n in ScreenResolution.__members__)
        raise ValueError(f"resolution is {name!r}: allowed: {known}")
    return found


def _flat_head(buttons: list[Button]) -> list[list[dict[int, float]]]:
    usable = [i for i, button in enumerate(buttons) if not button.name.endswith("_DELTA")]
    return [[{}, *({i: 1.0} for i in usable)]]


def _unused(buttons: list[Button], heads: list[list[dict[int, float]]]) -> list[str]:
    """Return the names of buttons that take a number and are in no choice."""
    used = {index for head in heads for choice in head for index in choice}
    return [button.name for index, button in enumerate(buttons) if button.name.endswith("_DELTA") and index not in used]


def button_heads(buttons: list[Button], turns: Sequence[float]) -> list[list[dict[int, float]]]:
    """Return the heads of choices: buttons that exclude each other share one, with a choice of none of them.

    Args:
        buttons: The engine's.
        turns: Angles, in degrees, for the button that takes one.

    Returns:
        For each head and choice: button index -> value.
    """
    index = {button.name: i for i, button in enumerate(buttons)}
    # Turning by an angle replaces the turn buttons, as in Sample Factory's full action space.
    if _TURN_DELTA in index:
        for name in _EXCLUSIVE[0]:
            index.pop(name, None)
    heads: list[list[dict[int, float]]] = []
    for names in _EXCLUSIVE:
        group = [index.pop(name) for name in names if name in index]
        if group:
            heads.append([{}, *({i: 1.0} for i in group)])
    if _TURN_DELTA in index:
        heads.append([{index[_TURN_DELTA]: angle} for angle in turns])
    heads += [[{}, {i: 1.0}] for name, i in index.items() if not name.endswith("_DELTA")]
    return heads
