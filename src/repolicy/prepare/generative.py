"""Use a generative policy as a prior: N(0, I) over its noise, in an environment whose action is that noise."""

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repolicy.envs import (
    Addon,
    Backend,
    Evaluation,
    Transitions,
    addons,
    check_copies,
    chunk_length,
    decoder_options,
    evaluate,
    find_session_only,
    is_in_gymnasium,
    make_envs,
    make_one_env,
    parse_env_name,
    probe_env,
    with_decoder,
)
from repolicy.errors import UsageError, in_one_sentence
from repolicy.loading import load_object, reference_to
from repolicy.policies import ActionSpace, Policy, PolicySpec, frozen, make_policy, moment_sums
from repolicy.prepare.beginning import Start, open_prior
from repolicy.prepare.session import complete_settings, display_name
from repolicy.prepare.weights import collect_trial
from repolicy.priors import check_generative_options, decoder_digest, is_code, load_decoder
from repolicy.readers.reading import Options
from repolicy.runs import Settings

HIDDEN, MIN_STD = (128, 128), 1e-3  # layers, and what is added to a std so that it is never 0
NOISE_SCALES = (1.0, 0.5, 0.0)  # of the noise, which cost no training
EPISODES, PROBE_ROWS = 16, 64
BEST_OF_DRAWS, MAX_COPY_STEPS = 16, 40_000  # draws, and the most steps of copies that they may take
MIN_RELATIVE_EFFECT = 0.01  # of what the strongest direction of the noise does to the actions


def open_start(
    given: Any,
    env: str,
    settings: Any,
    noise: int,
    chunk: int,
    trust: bool,
    kept: Path,
    resumed: bool,
    reading: Options | None = None,
    init: str | Path = "auto",
) -> tuple[Start, str]:
    """Open the prior of a customization, and return it with the environment's name, which may contain a decoder.

    An empty `env` stays empty where the prior's card may name it. `kept` is the copy of the prior that the run keeps;
    it is there already where the run is `resumed`.
    """
    if not noise:  # an object may have attributes for these
        thing = load_object(given, "prior") if is_code(given) else given
        noise = getattr(thing, "noise_size", 0)
        chunk = getattr(thing, "chunk", chunk) if noise else chunk
    if not noise:
        if chunk != 1:
            raise UsageError(f"chunk is {chunk}, which goes with noise, of a generative policy: leave --chunk out")
        return open_prior(given, reading, init, trust, kept), env
    check_generative_options(display_name(given), reading)
    if not env:
        raise UsageError(f"{display_name(given)} does not say which environment it is for; name one with --env")
    if not resumed:
        policy, name = noise_prior(given, noise, chunk, env, complete_settings(settings, Settings()), trust)
        # noise_prior has run one trial rollout already, for the normalizer
        return replace(open_prior(policy), name=display_name(given), trials=2), name
    reference, through = decoder_reference(given), decoder_options(env)
    if through is None:
        return open_prior(kept), with_decoder(env, reference, noise, chunk, decoder_digest(reference))
    if Path(reference).is_file() and through.sha256 not in (None, decoder_digest(reference)):
        raise UsageError(f"{reference} is another file than when this run began: put that back, or name another --out")
    return open_prior(kept), env


def noise_prior(
    given: Any, noise: int, chunk: int, env: str, settings: Settings | None = None, trust: bool = False
) -> tuple[Policy, str]:
    """Return the policy N(0, I), and the name of the environment whose actions this decoder decodes.

    The policy's normalizer has the statistics of its observations in trial steps.
    """
    settings, reference = settings or Settings(), decoder_reference(given)
    load_decoder(reference, noise, chunk, trust=trust)
    name = with_decoder(env, reference, noise, chunk, decoder_digest(reference))
    policy = standard_normal(probe_env(name, settings.backend).observation_size, noise, settings.seed)
    rollout = collect_trial(policy, name, settings)
    policy.normalizer.update(moment_sums(rollout.observations[..., : policy.observation_size]))
    return frozen(policy), name


def decoder_reference(given: Any) -> str:
    """Return the name by which every process can load a decoder; raise where it has none."""
    reference = str(given) if isinstance(given, str | Path) else reference_to(given)
    if find_session_only([reference]):
        raise UsageError("a decoder is found by other processes, too: write it into a file and name file.py:decode")
    return reference


def standard_normal(observation_size: int, noise: int, seed: int = 0) -> Policy:
    """Return a policy of mean 0 and std 1 for all observations; training can change its mean for each of them."""
    space = ActionSpace("continuous", (noise,))
    policy = make_policy(
        PolicySpec(observation_size, space, hidden=HIDDEN, initial_std=1.0 - MIN_STD, min_std=MIN_STD), seed
    )
    with torch.no_grad():
        policy.network.weights[-1].zero_()
        policy.network.biases[-1].zero_()
    return policy


def with_noise_scale(policy: Policy, scale: float) -> Policy:
    """Return a copy of the policy with the std `scale`: N(0, scale² · I)."""
    other = frozen(policy)
    assert other.log_std is not None
    other.log_std.fill_(float(np.log(scale - MIN_STD)))
    return other


def evaluate_untrained(prior: Policy, env: str, wishes: tuple[str, ...], settings: Settings) -> tuple[list[str], int]:
    """Evaluate the decoder without training, and return notes and the number of decisions that this took.

    It is evaluated at smaller noise scales, and as the best of some draws by the add-on. A note says how many
    directions of the noise change the actions.
    """
    asked, seed = addons.with_weights(wishes), settings.seed
    found = [
        evaluate(
            with_noise_scale(prior, scale) if scale else prior, env, EPISODES,
            addon=asked, deterministic=not scale, seed=seed, backend=settings.backend,
        )
        for scale in NOISE_SCALES
    ]  # fmt: skip
    notes = [
        f"noise of scale {scale:g}: {_format_rewards(each)}" for scale, each in zip(NOISE_SCALES, found, strict=True)
    ]
    taken, best = sum(_decision_count(each) for each in found), f"the best of {BEST_OF_DRAWS} by the wish"
    try:
        addon, simulated = (
            addons.combine_addons(asked),
            int(BEST_OF_DRAWS * found[0].lengths.mean() * chunk_length(env)),
        )
        check_copyable(env, addon)
        if simulated > MAX_COPY_STEPS:
            raise UsageError(f"an episode of it would take {simulated:,} steps of copies")
        episodes = min(EPISODES, MAX_COPY_STEPS // simulated)
        of_copies = evaluate(BestOf(prior, addon, BEST_OF_DRAWS), env, episodes, addon=asked, seed=seed)
        notes.append(f"{best}: {_format_rewards(of_copies)}")
        taken += (BEST_OF_DRAWS + 1) * _decision_count(of_copies)
    except UsageError as error:
        notes.append(f"{best} is not known: {error}")
    return [*(f"without training, {note}" for note in notes), _describe_decoder(env, settings)], taken


class BestOf:
    """An agent that draws noise `count` times and takes the draw of highest add-on reward in copied environments."""

    backend: Backend = "gymnasium"

    def __init__(self, prior: Policy, addon: Addon, count: int) -> None:
        self.observation_size, self.actions = prior.observation_size, prior.actions
        self.addon, self.count, self.random = addon, count, np.random.default_rng(0)

    def watch(self, envs: Any) -> None:
        """Set the environments that are copied for each decision."""
        self._envs = envs

    def actor(self, steps: int, count: int, generator: torch.Generator | None = None) -> "BestOf":
        return self

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        rows = len(observations)
        draws = self.random.standard_normal((rows * self.count, self.actions.width)).astype(np.float32)
        step = self._envs.copies(self.count, self.random).step(draws)
        tried = Transitions(step.chunk.observations, step.chunk.actions, step.chunk.final, step.chunk.info)
        paid = np.where(step.chunk.counts, self.addon.reward(tried), 0.0).sum(0).reshape(rows, self.count)
        return draws.reshape(rows, self.count, -1)[np.arange(rows), paid.argmax(1)]

    def log_probs(self, actions: Tensor) -> Tensor:
        """Return zeros: the best of several draws has no density in closed form."""
        return torch.zeros(actions.shape[:-1])

    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        return self.log_probs(actions)

    def to_environment(self, actions: np.ndarray) -> np.ndarray:
        return actions


def check_copyable(env: str, addon: Addon) -> None:
    """Raise where the environment cannot be copied, or where an add-on depends on past steps."""
    plain, _ = parse_env_name(env)
    if addon.stateful_names:
        raise UsageError(f"{addon.stateful_names[0]} has a past, which a copy does not know")
    if not is_in_gymnasium(env):
        raise UsageError(f"{plain} is EnvPool's alone, whose environments cannot be copied")
    with closing(make_one_env(env)) as made, in_one_sentence(f"{plain} cannot be copied", UsageError):
        check_copies(made, plain)


def _decision_count(found: Evaluation) -> int:
    """Return the number of decisions in all environments of an evaluation."""
    assert found.steps is not None  # which are all, where each environment has one episode
    return found.steps.rewards.size


def _format_rewards(found: Evaluation) -> str:
    columns = [column for name, column in found.columns.items() if name in ("basic_reward", "addon_reward", "metric")]
    return ", ".join(f"{column.title} {column.mean:,.4g} ± {column.error:.2g}" for column in columns)


def _describe_decoder(env: str, settings: Settings) -> str:
    """Return a note: how many directions of the noise change the actions, and how long decoding takes."""
    through = decoder_options(env)
    assert through is not None
    decode = load_decoder(*through)
    envs = make_envs(env, PROBE_ROWS, settings.seed, settings.backend)
    observations = envs.reset()[:, : envs.observation_size]
    envs.close()
    noise = np.random.default_rng(settings.seed).standard_normal((PROBE_ROWS, decode.noise), np.float32)
    began = time.perf_counter()
    base = decode(observations, noise)
    seconds = time.perf_counter() - began
    directions = 0.1 * np.eye(decode.noise, dtype=np.float32)
    moved = [(decode(observations, noise + direction) - base).ravel() for direction in directions]
    strengths = np.linalg.svd(np.stack(moved), compute_uv=False)
    count = int((strengths > MIN_RELATIVE_EFFECT * strengths[0]).sum())
    change = f"{count} of {decode.noise} directions of the noise change the actions"
    return f"{change}; {PROBE_ROWS} rows are decoded in {1000 * seconds:.1f} ms"
