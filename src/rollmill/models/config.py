"""The configuration of a model. Imports no torch: processes without a network read it too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rollmill.settings.fields import setting
from rollmill.settings.value_checks import ABOVE_ZERO, ANY_NUMBER, NAME, Checked, Rule, integer
from rollmill.specs import ActionSpec, ArraySpec, BoxActions, BoxHead

Activation = Literal["auto", "relu", "elu", "tanh", "silu", "gelu"]
CoreKind = Literal["none", "gru", "lstm"]
Initialisation = Literal["auto", "orthogonal", "lecun", "torch"]

ACTOR_CRITIC = "actor_critic"
BUILT_IN_ENCODERS = ("auto", "nature", "sf_simplified", "sf_full", "impala", "small", "board", "sound", "mlp")


def _are_bounds(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and value[0] < value[1]


_WIDTHS = Rule(
    lambda value: isinstance(value, tuple) and all(map(integer(1).holds, value)),
    "widths of at least 1 (no layer: leave it out)",
)
_BOUNDS = Rule(_are_bounds, "two numbers, the smaller one first")


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Checked, section="model"):
    """What network a policy is.

    Attributes:
        model: Name of a whole model, as given to :func:`rollmill.models.registry.register_model`; ``"actor_critic"`` is
            the built-in :class:`rollmill.models.actor_critic.ActorCritic`.
        encoder: ``"auto"`` chooses for each observation entry by its spec: images of at least 36 x 36 pixels get the
            Nature CNN, smaller grids a small CNN, with strides from 16 x 16 pixels on (of one-hot numbers where the
            space says that they are at most 31, as MiniGrid's categories), sounds (int16 ``[channels, samples]``, 1 or
            2 channels, at least 256 samples) the one of "Agents that Listen", everything else an MLP. A built-in one
            (``"nature"``, ``"sf_simplified"``, ``"sf_full"``, ``"impala"``, ``"small"``, ``"board"``, ``"mlp"``) is
            used for the images, and other entries are encoded as with ``"auto"``; ``"board"`` is one convolution with
            windows of 4 x 4 squares and two dense layers; ``"sound"`` is for ``entry_encoders``. One given to
            :func:`rollmill.models.registry.register_encoder` gets the whole observation.
        entry_encoders: Observation name -> built-in encoder name, for entries that need another than ``encoder``.
        options: Options of a registered model, encoder or algorithm, which reads them as ``config.options``.
        dense_size: Width of the dense layers behind convolutions; None is the published one (512, IMPALA 256).
        mlp_sizes: Widths of the hidden layers of an MLP encoder. (64, 64) is CleanRL's, SB3's and Baselines' choice.
        head_sizes: Widths of dense layers between the encoder (or core) and the heads.
        activation: ``"auto"`` is the encoder's published one: ReLU (Nature, IMPALA), ELU (Sample Factory), tanh (MLP).
            For ``head_sizes`` it is tanh with ``encoder="mlp"``, and ReLU with all others.
        core: Recurrent core between encoder and heads.
        core_size: Width of the core. 512 is Sample Factory's.
        shared: Whether actor and critic share encoder and heads' layers. A core requires ``shared``. ``"auto"`` shares
            them for observations with pictures, whose encoders are expensive, and with a core; else actor and critic
            have encoders of their own, as in CleanRL, SB3 and Baselines (docs/journal/2026-11.md). ``config.json``
            records what it stands for.
        central_value: With several agents, whether the critic judges an agent's situation by what all agents of its
            environment observe, while the actor sees its own observation (MAPPO; Yu et al. 2022,
            https://arxiv.org/abs/2103.01955). The critic then has an encoder of its own. For vectors, and for on-policy
            algorithms.
        init: ``"auto"`` is the encoder's published one: orthogonal with gain sqrt(2) (CleanRL, "37 implementation
            details of PPO"), or for IMPALA LeCun-normal convolutions with orthogonal dense layers (Cleanba).
            ``"torch"`` keeps PyTorch's. The heads' gains are 0.01 (policy) and 1 (value) except for ``"torch"``.
        initial_log_std: Of Gaussian heads. 0 is CleanRL's and SB3's.
        state_dependent_std: Whether the network gives each state its own log standard deviation (clamped to
            ``log_std_bounds``); else it is one learnt vector.
        log_std_bounds: Bounds of a state-dependent log standard deviation. (-20, 2) is SB3's for SAC.
        squash_actions: Whether real actions are squashed by tanh into their bounds (which must be finite); else they
            are Gaussian and clipped by the environment's side.
        scale_actions: Whether the policy draws real actions in units of half the range of their bounds (which must be
            finite), so that 0 is the middle and plus and minus 1 are the bounds, at which they are clipped. ``"auto"``
            does so where all bounds are finite and some are not -1 and 1; ``config.json`` records what it stands for.
            RLlib calls this ``normalize_actions``.
        normalise_observations: Whether running statistics normalise entries other than images and sounds; those of each
            task, where the observation says which of several tasks it is.
        normalise_images: Whether they also normalise images, one mean and deviation for each element.
        centre_pixels: Whether the usual brightness of each channel (a running mean of the pictures' medians; with
            off-policy algorithms that of the first batch) is subtracted from pictures of bytes, inside of the first
            convolution; with "each" the mean of the picture itself, for several tasks with different backgrounds. It
            keeps filters alive (docs/journal/2026-11.md). Without effect where ``normalise_images`` does more,
            in MLPs, and in users' encoders that have no ``ImageInput``.
        normalise_grids: Whether a layer norm ends the encoder of a small grid of categories (MiniGrid's), whose first
            layer then starts as if its inputs had variance 1. It keeps single cells visible to a core that has to
            remember them, but hinders exploration where rewards are rare (docs/journal/2026-11.md).
        observation_clip: Normalised observations are clipped to plus and minus this. 10 is Baselines' and SB3's.
        normalise_returns: Whether the critic predicts returns in units of their running mean and deviation. "popart"
            also keeps its predictions where these change, and with several tasks (``env.tasks``) has a mean, a
            deviation and an output for each (PopArt; Hessel et al. 2019, https://arxiv.org/abs/1809.04474).
        observe_task: With several tasks, whether the network sees which task a row belongs to, as a one-hot entry of
            the observation.
    """

    model: str = setting(ACTOR_CRITIC, NAME)
    encoder: str = setting("auto", NAME)
    entry_encoders: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)
    dense_size: int | None = setting(None, integer(1), "for the published width")
    mlp_sizes: tuple[int, ...] = setting((64, 64), _WIDTHS)
    head_sizes: tuple[int, ...] = setting((), _WIDTHS)
    activation: Activation = "auto"
    core: CoreKind = "none"
    core_size: int = setting(512, integer(1), "(no core: core='none')")
    shared: bool | Literal["auto"] = True
    central_value: bool = False
    init: Initialisation = "auto"
    initial_log_std: float = setting(0.0, ANY_NUMBER)
    state_dependent_std: bool = False
    log_std_bounds: tuple[float, float] = setting((-20.0, 2.0), _BOUNDS)
    squash_actions: bool = False
    scale_actions: bool | Literal["auto"] = False
    normalise_observations: bool = False
    normalise_images: bool = False
    centre_pixels: bool | Literal["each"] = False
    normalise_grids: bool = False
    observation_clip: float = setting(10.0, ABOVE_ZERO)
    normalise_returns: bool | Literal["popart"] = False
    observe_task: bool = False

    @property
    def uses_task(self) -> bool:
        """Whether the network needs to know which of several tasks a row belongs to."""
        return self.observe_task or self.normalise_returns == "popart"

    @property
    def centres_pixels(self) -> bool | Literal["each"]:
        """How first convolutions centre pictures: normalised ones are centred already."""
        return False if self.normalise_images else self.centre_pixels

    @property
    def box_actions(self) -> BoxActions:
        """What the data plane makes of an actor's real numbers."""
        if self.squash_actions:
            return "tanh"
        return "scale" if self.scale_actions is True else "clip"

    def stored_action(self, action: ActionSpec) -> ActionSpec:
        """The action as slots hold it: in [-1, 1] where the data plane scales it to the environment's bounds."""
        return action.in_unit_box if self.box_actions == "scale" else action

    def scales_actions(self, action: ActionSpec) -> bool:
        """``scale_actions``, or what "auto" stands for with such actions."""
        if self.scale_actions != "auto":
            return self.scale_actions
        boxes = [head for head in action.heads if isinstance(head, BoxHead)]
        is_unit = all(set(box.low) <= {-1.0} and set(box.high) <= {1.0} for box in boxes)
        return all(box.is_bounded for box in boxes) and not is_unit and not self.squash_actions

    def shares_encoder(self, observation: Mapping[str, ArraySpec]) -> bool:
        """``shared``, or what "auto" stands for with such observations."""
        if self.central_value:
            return False
        if self.shared != "auto":
            return self.shared
        return self.core != "none" or any(item.is_picture for item in observation.values())

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ValueError: A value is outside of what is allowed.
        """
        super().__post_init__()
        if self.scale_actions is True and self.squash_actions:
            raise ValueError(
                "model.scale_actions and model.squash_actions are both on; the first clips actions at the bounds, with "
                "the second they only come near: choose one"
            )
        if self.core != "none" and not self.shared:
            raise ValueError(
                f"model.core is {self.core!r} with shared=False; a recurrent core is shared by actor and critic: "
                "set shared=True or core='none'"
            )
        if self.core != "none" and self.central_value:
            raise ValueError(
                f"model.core is {self.core!r} with central_value=True; a recurrent core is shared by actor and critic, "
                "which see different things: use core='none'"
            )
        if self.normalise_images and not self.normalise_observations:
            raise ValueError("model.normalise_images needs normalise_observations=True; set it, or leave images alone")
