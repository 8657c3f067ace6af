"""Names of settings in other libraries, and the corresponding settings here.

The names are those of Stable-Baselines3, its zoo, CleanRL, RLlib, Sample Factory, TorchRL, Tianshou and Spinning Up.
They are hints for messages only: no setting is set by one, because its meaning or its unit may differ. A name that
ends one key of ours is not among them: it sets that key.
"""

from __future__ import annotations

import difflib
from typing import Final, NamedTuple


class Hint(NamedTuple):
    """A setting that a foreign name may stand for.

    Attributes:
        key: Dotted key, or an argument of ``train``.
        remark: How the two differ; empty where they do not.
    """

    key: str
    remark: str = ""


# Hint -> the foreign names. A name that occurs twice may mean either.
_NAMES: Final = {
    # Length and place of a run.
    Hint("total_steps", "agent steps"): "total_timesteps timesteps n_timesteps num_timesteps timesteps_total "
    "max_timesteps max_steps num_steps_total steps env_steps total_env_steps max_env_steps step_num",
    Hint("total_steps", "agent steps, that is frames / env.frameskip"): "train_for_env_steps total_frames num_frames "
    "frames n_frames max_frames_total",
    Hint("max_seconds"): "train_for_seconds time_limit_s time_total_s max_time max_runtime",
    Hint("target_return"): "stop_reward reward_threshold target_reward episode_reward_mean stop_return",
    Hint("run_dir", "an argument of train, --run-dir on the command line"): "log_dir logdir tensorboard_log train_dir "
    "output_dir out_dir save_path save_dir experiment exp_name experiment_name local_dir log_path",
    Hint("seed"): "random_seed rng_seed random_state",
    Hint("eval_every", "agent steps"): "eval_freq evaluation_interval eval_interval eval_frequency",
    Hint("eval_episodes"): "n_eval_episodes evaluation_duration num_eval_episodes evaluation_num_episodes test_num",
    Hint("checkpoint.every_steps", "agent steps"): "save_freq checkpoint_freq checkpoint_frequency save_interval",
    Hint("checkpoint.every_s", "seconds"): "save_every_sec save_every_s",
    Hint("checkpoint.keep"): "keep_checkpoints keep_checkpoints_num num_to_keep",
    Hint("tracker", "such as tensorboard,wandb"): "track trackers with_wandb use_wandb wandb report_to logger loggers",
    Hint("tracking.project", "with tracker tensorboard,wandb"): "wandb_project wandb_project_name",
    Hint("tracking.group"): "wandb_group wandb_group_name",
    Hint("tracking.wandb_entity"): "entity wandb_user wandb_team",
    Hint("report_every_s", "seconds"): "log_interval log_freq stats_avg experiment_summaries_interval",
    # The environment.
    Hint("PRESET", "the first argument, without a name"): "env env_id env_name environment task gym_id game",
    Hint("env.kwargs", "--env.kwargs.NAME VALUE sets one"): "env_kwargs env_config env_args environment_config",
    Hint("env.frameskip"): "frame_skip env_frameskip action_repeat skip",
    Hint("env.atari.frame_stack"): "framestack env_framestack stack stack_num num_stack n_stack frames_stack",
    Hint("env.atari.sticky_actions"): "repeat_action_probability sticky sticky_action",
    Hint("env.atari.life_loss"): "episodic_life terminal_on_life_loss episode_life",
    Hint("env.atari.grayscale"): "grayscale_obs gray_scale",
    Hint("env.max_episode_steps"): "time_limit max_episode_length horizon max_ep_len episode_length max_path_length",
    # Environments and processes.
    Hint("num_envs", "all environments of the run"): "n_envs nenvs num_environments training_num train_num "
    "n_env envs env_num",
    Hint("num_envs", "all environments of the run, over all workers"): "num_envs_per_worker num_envs_per_env_runner "
    "num_actors n_actors",
    Hint("rollout.num_workers", "processes that step environments"): "num_workers num_env_runners num_rollout_workers "
    "n_workers workers n_jobs nproc num_processes num_procs num_cpu n_cpu",
    Hint("inference.num_workers", "processes that compute actions"): "num_workers policy_workers_per_policy",
    Hint("rollout.groups_per_worker"): "worker_num_splits",
    Hint("rollout_length", "steps of each environment"): "rollout n_steps num_steps nsteps rollout_fragment_length "
    "unroll_length rollout_steps rollout_len horizon_length step_per_collect num_rollout_steps n_rollout_steps "
    "steps_per_env num_steps_per_env trajectory_length seq_len recurrence",
    Hint("rollout.decorrelate_steps", "agent steps"): "decorrelate_experience_max_seconds",
    Hint("learner.batch_size", "samples of a whole batch; PPO's minibatch is batch_size / learner.minibatches"):
    "train_batch_size train_batch_size_per_learner frames_per_batch steps_per_epoch timesteps_per_batch bs "
    "num_steps_per_batch",
    Hint("learner.device", "of the learner; inference.device of the policy workers"): "device cuda use_cuda gpu "
    "use_gpu num_gpus num_gpus_per_learner no_cuda",
    Hint("learner.precision"): "dtype mixed_precision amp use_amp fp16",
    Hint("regime", "'lockstep' is reproducible"): "torch_deterministic deterministic async_rl serial_mode sync",
    # On-policy learning.
    Hint("learner.learning_rate"): "lr step_size pi_lr vf_lr q_lr critic_lr value_lr lr_critic init_lr "
    "initial_lr initial_learning_rate base_lr",
    Hint("learner.schedule"): "anneal_lr lr_schedule lr_decay lr_scheduler learning_rate_schedule use_lr_decay "
    "learning_rate_decay lr_anneal linear_lr_decay decay_lr",
    Hint("learner.min_learning_rate", "with learner.schedule='kl'"): "lr_adaptive_min",
    Hint("learner.max_learning_rate", "with learner.schedule='kl'"): "lr_adaptive_max",
    Hint("learner.discount"): "gamma discount_factor discounting gam gamma_discount",
    Hint("learner.gae_lambda"): "lam lambda lambda_ lmbda gae_lam gae lambda_gae td_lambda",
    Hint("learner.clip_range"): "clip clip_coef clip_param clip_eps clip_epsilon clip_ratio cliprange eps_clip "
    "ppo_clip ppo_clip_ratio clipping_epsilon ratio_clip policy_clip ppo_epsilon clipping",
    Hint("learner.value_clip"): "clip_vloss clip_range_vf vf_clip_param ppo_clip_value clip_value value_clip_range "
    "clip_value_loss vf_clip",
    Hint("learner.entropy_coef"): "ent_coef entropy_coeff ent_coeff entropy_cost entropy_bonus entropy_beta entropy "
    "exploration_loss_coeff entropy_weight c2 ent",
    Hint("learner.entropy_schedule"): "entropy_coeff_schedule ent_coef_schedule",
    Hint("learner.value_coef"): "vf_coef vf_loss_coeff value_loss_coeff value_loss_coef critic_coeff critic_coef "
    "baseline_cost v_coef value_coeff vf_coeff c1",
    Hint("learner.epochs"): "n_epochs num_epochs update_epochs num_sgd_iter ppo_epochs ppo_epoch noptepochs "
    "optim_epochs repeat_per_collect k_epochs train_pi_iters sgd_iters num_sgd_epochs",
    Hint("learner.minibatches", "a number of parts, not a size"): "num_minibatches n_minibatches nminibatches "
    "num_mini_batch num_mini_batches num_batches_per_epoch minibatch mini_batches",
    Hint("learner.minibatches", "a number of parts: learner.batch_size / the size"): "minibatch_size mini_batch_size "
    "sgd_minibatch_size minibatchsize mini_batch",
    Hint("learner.max_grad_norm"): "grad_clip grad_norm clip_grad clip_grad_norm gradient_clip max_gradient_norm "
    "max_norm grad_clip_norm gradient_clip_norm grad_norm_clip gradient_clipping",
    Hint("learner.kl_target", "for learner.schedule='kl', which adapts the learning rate; no epoch is stopped early"):
    "target_kl kl_coeff kl_loss_coeff desired_kl kl_threshold lr_schedule_kl_threshold max_kl",
    Hint("learner.normalise_advantages"): "norm_adv normalize_advantage normalize_advantages advantage_norm "
    "standardize_advantages adv_norm norm_advantages",
    Hint("learner.advantage", "'vtrace' or 'gae'"): "with_vtrace use_vtrace vtrace use_gae",
    Hint("learner.optimiser"): "optimizer optim optimizer_class opt use_rms_prop",
    Hint("learner.adam_eps"): "adam_epsilon optimizer_eps opt_eps eps rms_prop_eps",
    Hint("learner.adam_betas"): "betas adam_beta1 adam_beta2 beta1 beta2 b1 b2 adam_b1 adam_b2",
    Hint("learner.reward_clip"): "clip_reward clip_rewards reward_clipping",
    Hint("learner.reward_scale"): "reward_scaling rew_scale",
    # The network.
    Hint("model.mlp_sizes", "such as 64,64"): "hidden_sizes net_arch hidden_size hidden_dim hidden_dims hidden_units "
    "fcnet_hiddens policy_kwargs layers layer_sizes mlp_layers encoder_mlp_layers num_cells hidden network_size units "
    "net_width hidden_layers num_hidden",
    Hint("model.encoder"): "network policy_class encoder_conv_architecture cnn conv_filters features_extractor "
    "features_extractor_class network_type nature_cnn resnet",
    Hint("model.head_sizes"): "decoder_mlp_layers post_fcnet_hiddens",
    Hint("model.activation"): "activation_fn nonlinearity fcnet_activation act activation_function",
    Hint("model.core"): "use_rnn rnn_type use_lstm lstm recurrent rnn gru use_recurrent",
    Hint("model.core_size"): "rnn_size lstm_hidden_size lstm_cell_size rnn_hidden_size lstm_size gru_size",
    Hint("model.initial_log_std"): "log_std_init initial_stddev init_log_std",
    Hint("model.state_dependent_std"): "adaptive_stddev",
    Hint("model.scale_actions"): "normalize_actions rescale_actions rescale_action normalise_actions",
    Hint("model.shared"): "actor_critic_share_weights vf_share_layers share_features_extractor shared_network",
    Hint("model.init"): "ortho_init policy_initialization weight_init",
    Hint("model.normalise_observations"): "normalize normalize_obs norm_obs normalize_input normalize_observation "
    "normalize_observations observation_filter obs_norm",
    Hint("model.normalise_returns"): "normalize_reward normalize_rewards norm_reward normalize_returns norm_return "
    "reward_norm normalize_return popart",
    # Off-policy learning.
    Hint("replay.capacity", "agent steps"): "buffer_size replay_size replay_buffer_size buffer_capacity memory_size "
    "replay_capacity buffer.size replay_buffer_capacity memory_capacity size_buffer rb_size",
    Hint("replay.min_size", "agent steps before the first batch"): "learning_starts learn_start train_start "
    "update_after num_steps_sampled_before_learning_starts warmup warmup_steps min_replay_size min_buffer_size "
    "init_size init_random_frames replay_start_size",
    Hint("off_policy.random_steps", "agent steps with random actions"): "start_steps start_timesteps "
    "init_random_frames learning_starts start_training_after random_action_steps",
    Hint("replay.update_interval", "agent steps for each SGD step: train_freq x num_envs / gradient_steps"):
    "train_freq train_frequency gradient_steps update_every update_frequency training_intensity frames_per_update "
    "replay_period",
    Hint("replay.update_interval", "agent steps for each SGD step, 1 / the ratio"): "utd utd_ratio update_per_step "
    "replay_ratio",
    Hint("replay.n_step", "steps of n-step returns"): "n_steps multi_step nstep n_step_return estimation_step "
    "n_step_returns multi_steps td_steps",
    Hint("replay.priorities", "'proportional' for a prioritised replay"): "prioritized_replay prioritized prioritised "
    "per prioritized_er use_per",
    Hint("replay.alpha"): "prioritized_replay_alpha per_alpha priority_alpha priority_exponent",
    Hint("replay.beta"): "prioritized_replay_beta per_beta prioritized_replay_beta0 priority_beta priority_weight",
    Hint("replay.epsilon"): "prioritized_replay_eps per_eps",
    Hint("off_policy.tau"): "polyak_tau target_tau soft_update_tau target_update_tau soft_tau",
    Hint("off_policy.tau", "1 - polyak: the share of the new weights"): "polyak polyak_coef",
    Hint("off_policy.target_update_every", "SGD steps"): "target_network_frequency target_update_interval "
    "target_network_update_freq target_update_freq hard_update_interval target_network_update_frequency "
    "target_update_frequency target_update_period target_update",
    Hint("off_policy.epsilon_fraction"): "exploration_fraction eps_fraction epsilon_decay exploration_decay eps_decay",
    Hint("off_policy.epsilon_steps", "agent steps"): "epsilon_timesteps annealing_num_steps annealing_frames "
    "eps_decay_steps epsilon_decay_steps",
    Hint("off_policy.epsilon_start"): "exploration_initial_eps start_e eps_start initial_epsilon epsilon_initial "
    "eps_init",
    Hint("off_policy.epsilon_end"): "exploration_final_eps end_e eps_end final_epsilon epsilon_final min_epsilon "
    "epsilon_min eps_train eps_min",
    Hint("off_policy.noise_std", "in units of half the range"): "exploration_noise action_noise act_noise sigma "
    "expl_noise noise_sigma noise",
    Hint("off_policy.target_noise"): "target_policy_noise policy_noise",
    Hint("off_policy.target_noise_clip"): "noise_clip target_policy_noise_clip",
    Hint("off_policy.policy_delay"): "policy_frequency policy_freq delayed_policy_update update_actor_freq",
    Hint("off_policy.actor_learning_rate"): "actor_lr policy_lr lr_actor policy_learning_rate actor_lrate",
    Hint("off_policy.temperature"): "autotune auto_alpha ent_coef_auto alpha_init sac_alpha init_temperature "
    "entropy_temperature",
    Hint("off_policy.temperature", "SAC's"): "ent_coef",
    Hint("off_policy.temperature_learning_rate"): "alpha_lr_sac entropy_lr temperature_lr",
    Hint("off_policy.num_critics"): "n_critics num_qvalue_nets twin_q num_q_networks",
    Hint("off_policy.double"): "double_q double_dqn is_double use_double",
    Hint("off_policy.dueling"): "dueling_dqn is_dueling",
    # Population-based training.
    Hint("pbt.every", "agent steps of a policy"): "pbt_period_env_steps",
    Hint("pbt.start", "agent steps of a policy"): "pbt_start_mutation",
    Hint("pbt.share"): "pbt_replace_fraction",
    Hint("pbt.mutation_rate"): "pbt_mutation_rate",
    Hint("pbt.objective"): "pbt_target_objective",
    Hint("algo", "an argument of train, --algo on the command line"): "algorithm_name agent alg rl_algorithm trainer",
}  # fmt: skip

HINTS: Final[dict[str, tuple[Hint, ...]]] = {
    name: tuple(hint for hint, names in _NAMES.items() if name in names.split())
    for names_of_one in _NAMES.values()
    for name in names_of_one.split()
}


def hints_for(key: str, *, cutoff: float = 1.0) -> tuple[Hint, ...]:
    """What a foreign name may stand for.

    Args:
        key: As it was given, with underscores; of a dotted key the last part counts where the whole is not known.
        cutoff: How near it must come to a known name, by difflib's ratio; 1 takes known names only.

    Returns:
        The settings; empty where no known name is so near.
    """
    key = key.lower()
    last = key.rpartition(".")[2]
    for name in (key, last):
        if name in HINTS:
            return HINTS[name]
    near = difflib.get_close_matches(last, HINTS, n=1, cutoff=cutoff) if cutoff < 1 else []
    return HINTS[near[0]] if near else ()
