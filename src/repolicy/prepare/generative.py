"""Customize a generative policy: its noise becomes the action, and N(0, I) over the noise becomes the prior."""

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repolicy.addons import Addon, addon_names, combine_addons
from repolicy.envs import (
    Backend,
    Transitions,
    check_copies,
    find_session_only,
    make_envs,
    make_one_env,
    parse_env_name,
    probe_env,
    with_decoder,
    with_observation_roles,
)
from repolicy.errors import UsageError, in_one_sentence
from repolicy.evaluation import Evaluation, evaluate
from repolicy.loading import load_object, reference_to
from repolicy.policies import ActionSpace, Policy, PolicySpec, frozen, make_policy
from repolicy.prepare.beginning import Start, open_prior
from repolicy.prepare.session import display_name
from repolicy.prepare.weights import collect_trial
from repolicy.priors import check_no_options, decoder_digest, fit_normalizer, is_code, load_decoder
from repolicy.readers.reading import Options
from repolicy.runs import Estimate, Settings, validate_settings

HIDDEN, MIN_STD = (128, 128), 1e-3  # hidden layers; the part of a std that is always added, so that it is never 0
NOISE_SCALES = (1.0, 0.5, 0.0)  # scales of the noise that are evaluated without training
EPISODES = 16  # in each evaluation without training
BEST_OF_DRAWS, MAX_COPY_STEPS = 16, 40_000  # number of draws, and of environment steps that their copies may take
PROBE_ROWS = 64  # observations that are decoded to describe the decoder
MIN_RELATIVE_EFFECT = 0.01  # smallest effect of a noise direction on the actions, relative to the strongest one


def open_start(
    prior: Any,
    env: str,
    settings: Any,
    noise: int,
    chunk: int,
    trust: bool,
    prior_file: Path,
    resumed: bool,
    reading: Options | None = None,
    init: str | Path = "auto",
) -> tuple[Start, str]:
    """Open the prior of a customization, and return it with the environment's name, which may contain a decoder.

    An empty `env` stays empty where the prior's card may name it. `prior_file` is the copy in the run's folder, which
    exists already if the run is `resumed`. Then `env` may have the decoder, whose sizes need not be named again.
    """
    stored = parse_env_name(env).decoder if resumed else None
    if stored is not None and str(prior) == stored.decoder:
        noise, chunk = noise or stored.noise, stored.chunk if chunk == 1 else chunk
    decoder = load_object(prior, "prior") if is_code(prior) else prior
    noise = noise or getattr(decoder, "noise_size", 0)
    if noise and chunk == 1:
        chunk = getattr(decoder, "chunk", 1)
    if not noise:
        if chunk != 1:
            raise UsageError(f"chunk is {chunk}, which goes with noise, of a generative policy: leave --chunk out")
        return open_prior(prior, reading, init, trust, prior_file), env
    check_no_options(display_name(prior), reading, "a generative policy, which runs as it is")
    if init == "clone":
        raise UsageError("the prior of a generative policy is N(0, I), which is copied: leave --init clone out")
    if not env:
        remedy = "name its environment with --env; for another kind of policy leave out --noise"
        raise UsageError(f"{display_name(prior)} is named as a generative policy: {remedy}")
    if not resumed:
        if not isinstance(settings, Settings):
            settings = Settings(**validate_settings(dict(settings or {}), "settings"))
        policy, name = noise_prior(prior, noise, chunk, env, settings, trust)
        return replace(open_prior(policy), name=display_name(prior)), name
    reference = decoder_reference(prior)
    if stored is None:
        return open_prior(prior_file), with_decoder(env, reference, noise, chunk, decoder_digest(reference))
    is_same = reference == stored.decoder
    if Path(reference).is_file():
        is_same = stored.sha256 in (None, decoder_digest(reference))
    if (noise, chunk) != (stored.noise, stored.chunk) or not is_same:
        began = f"{stored.decoder} as it was then, noise of {stored.noise} and a chunk of {stored.chunk}"
        raise UsageError(f"this run began with {began}: name these, or another --out")
    return open_prior(prior_file), env


def noise_prior(
    decoder: Any, noise: int, chunk: int, env: str, settings: Settings | None = None, trust: bool = False
) -> tuple[Policy, str]:
    """Return the policy N(0, I) over noise, and the name of `env` with this decoder in front of it.

    The policy's normalizer is set to the statistics of observations in trial steps.
    """
    settings, reference = settings or Settings(), decoder_reference(decoder)
    load_decoder(reference, noise, chunk, trust=trust)
    env = with_observation_roles(env, backend=settings.backend)
    name = with_decoder(env, reference, noise, chunk, decoder_digest(reference))
    size = probe_env(name, settings.backend).observation_size
    policy = standard_normal(size, noise, settings.seed)
    rollout = collect_trial(policy, name, settings)
    fit_normalizer(policy, torch.from_numpy(rollout.observations[..., :size]).flatten(0, -2))
    return frozen(policy), name


def decoder_reference(decoder: Any) -> str:
    """Return the name by which every process can load a decoder; raise where it has none."""
    reference = str(decoder) if isinstance(decoder, str | Path) else reference_to(decoder)
    if find_session_only([reference]):
        raise UsageError("a decoder is found by other processes, too: write it into a file and name file.py:decode")
    return reference


def standard_normal(observation_size: int, noise: int, seed: int = 0) -> Policy:
    """Return a policy of mean 0 and std 1 for all observations; its network can learn a mean for each of them."""
    space = ActionSpace("continuous", (noise,))
    policy = make_policy(
        PolicySpec(observation_size, space, hidden=HIDDEN, initial_std=1.0 - MIN_STD, min_std=MIN_STD), seed
    )
    with torch.no_grad():
        policy.network.weights[-1].zero_()
        policy.network.biases[-1].zero_()
    return policy


def with_noise_scale(policy: Policy, scale: float) -> Policy:
    """Return a copy of the policy with `scale` times its std: of N(0, I), N(0, scale² · I)."""
    scaled, std = frozen(policy), policy.std
    assert scaled.log_std is not None
    assert std is not None
    scaled.log_std.copy_((scale * std - MIN_STD).log())
    return scaled


def evaluate_untrained(prior: Policy, env: str, wishes: tuple[str, ...], settings: Settings) -> tuple[list[str], int]:
    """Evaluate the decoder without training, and return notes and the number of decisions that this took.

    It is evaluated at smaller noise scales, and as the best of several draws by the add-on. A last note says how many
    directions of the noise change the actions.
    """
    description = _describe_decoder(env, settings)
    weighted, seed = addon_names.with_weights(wishes), settings.seed
    notes, evaluations = [], []
    for scale in NOISE_SCALES:
        policy = with_noise_scale(prior, scale) if scale else prior
        evaluation = evaluate(
            policy, env, EPISODES, addon=weighted, deterministic=not scale, seed=seed, backend=settings.backend
        )
        evaluations.append(evaluation)
        notes.append(f"noise of scale {scale:g}: {_format_rewards(evaluation)}")
    decisions = sum(each.environment_steps for each in evaluations)

    label = f"the best of {BEST_OF_DRAWS} by the wish"
    try:
        addon = combine_addons(weighted)
        check_copyable(env, addon)
        episode_steps = evaluations[0].lengths.mean() * parse_env_name(env).chunk_length
        copy_steps = int(BEST_OF_DRAWS * episode_steps)
        if copy_steps > MAX_COPY_STEPS:
            raise UsageError(f"an episode of it would take {copy_steps:,} steps of copies")
        episodes = min(EPISODES, MAX_COPY_STEPS // copy_steps)
        evaluation = evaluate(BestOf(prior, addon, BEST_OF_DRAWS), env, episodes, addon=weighted, seed=seed)
        notes.append(f"{label}: {_format_rewards(evaluation)}")
        decisions += (BEST_OF_DRAWS + 1) * evaluation.environment_steps
    except UsageError as error:
        notes.append(f"{label} is not known: {error}")
    notes[0] += " (± is the standard error)"
    return [*(f"without training, {note}" for note in notes), description], decisions


class BestOf:
    """An agent that takes, of `count` draws from the prior, that of highest add-on reward in copied environments."""

    backend: Backend = "gymnasium"

    def __init__(self, prior: Policy, addon: Addon, count: int) -> None:
        self.observation_size, self.actions = prior.observation_size, prior.actions
        self.prior, self.addon, self.count = prior, addon, count
        self.random, self.generator = np.random.default_rng(0), torch.Generator().manual_seed(0)

    def watch(self, envs: Any) -> None:
        """Set the environments that are copied for each decision."""
        self._envs = envs

    def actor(self, steps: int, count: int, generator: torch.Generator | None = None) -> "BestOf":
        return self

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        rows = len(observations)
        draws = self.prior.actor(1, rows * self.count, self.generator)(observations.repeat(self.count, 0))
        chunk = self._envs.copies(self.count, self.random).step(draws).chunk
        transitions = Transitions(chunk.observations, chunk.actions, chunk.final, chunk.info)
        rewards = np.where(chunk.counts, self.addon.reward(transitions), 0.0).sum(0).reshape(rows, self.count)
        return draws.reshape(rows, self.count, -1)[np.arange(rows), rewards.argmax(1)]

    def log_probs(self, actions: Tensor) -> Tensor:
        """Return zeros, because the best of several draws has no density in closed form."""
        return torch.zeros(actions.shape[:-1])

    def to_environment(self, actions: np.ndarray) -> np.ndarray:
        return actions


def check_copyable(env: str, addon: Addon) -> None:
    """Raise where the environment cannot be copied, or where an add-on depends on past steps."""
    parsed = parse_env_name(env)
    env_id = parsed.plain
    if addon.stateful_names:
        raise UsageError(f"{addon.stateful_names[0]} has a past, which a copy does not know")
    parsed.check_copyable()
    with closing(make_one_env(env)) as made, in_one_sentence(f"{env_id} cannot be copied", UsageError):
        check_copies(made, env_id)


def _format_rewards(evaluation: Evaluation) -> str:
    columns = evaluation.columns
    known = [columns[name] for name in ("basic_reward", "metric", "addon_reward") if name in columns]
    return ", ".join(f"{column.title} {Estimate(column.mean, column.error)}" for column in known)


def _describe_decoder(env: str, settings: Settings) -> str:
    """Return a note on how many directions of the noise change the actions, and how long decoding takes.

    Raise UsageError where none does.
    """
    options = parse_env_name(env).decoder
    assert options is not None
    decode = load_decoder(*options)
    with closing(make_envs(env, PROBE_ROWS, settings.seed, settings.backend)) as envs:
        observations = envs.reset()[:, : envs.observation_size]
    noise = np.random.default_rng(settings.seed).standard_normal((PROBE_ROWS, decode.noise), np.float32)
    start = time.perf_counter()
    actions = decode(observations, noise)
    seconds = time.perf_counter() - start
    # The singular values of the Jacobian, by differences.
    steps = 0.1 * np.eye(decode.noise, dtype=np.float32)
    changes = [(decode(observations, noise + step) - actions).ravel() for step in steps]
    strengths = np.linalg.svd(np.stack(changes), compute_uv=False)
    if not strengths[0]:
        raise UsageError(f"{decode.name} gives the same actions whatever its noise is, so nothing can be learned")
    count = int((strengths > MIN_RELATIVE_EFFECT * strengths[0]).sum())
    effect = f"{count} of {decode.noise} directions of the noise change the actions"
    return f"{effect}; {PROBE_ROWS} rows are decoded in {1000 * seconds:.1f} ms"
