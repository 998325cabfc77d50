"""What a nat is worth, where it is known: the optimum of linear–quadratic control at α."""

import math
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import safetensors.torch
import torch
from tiny_envs import CONTROL_COST, STATE_COST, Tiny, tiny
from worth_known import ALPHA, CALM, LONG, RARELY, episodes, optimum

from experiments.ledger import Ledger
from repolicy.evaluation import BLOCK_STEPS
from repolicy.learning.training import train
from repolicy.objective import greedy, soft
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import add_to_card, read_card, save_policy
from repolicy.policies.policy import PolicySpec, make_policy
from repolicy.prepare.states import MAX_STATE_SIZE
from repolicy.prepare.weights import weights_from_card, weights_from_worths
from repolicy.prepare.worth import WORTH_EPISODES, Worth, Worths, measure_worth, measure_worths, worth_of
from repolicy.priors.finding import find_policy, shipped_names
from repolicy.priors.opening import read_policy
from repolicy.runs.folder import RunFolder
from repolicy.runs.settings import Settings

LOW, HIGH = (-1.0, -1.0), (1.0, 1.0)


def sums(by_mean: np.ndarray, sampled: np.ndarray, nats: float) -> tuple[dict[str, np.ndarray], ...]:
    """Episodes with the same nats each, half of them the mode's."""
    return tuple(episodes(each, np.full(len(each), nats / 2)) for each in (by_mean, sampled))


def test_noise_that_costs_nothing_tells_nothing() -> None:
    returns = np.random.default_rng(0).normal(size=(2, 50))
    assert not worth_of(*sums(returns[0], returns[1], 10.0)).is_known
    assert worth_of(*sums(returns[0], returns[1], 0.0)) is None  # a policy without noise


def test_the_error_is_that_of_the_ratio() -> None:
    """Of many repetitions, the values scatter as their errors say; also where episodes have nats of several sizes."""
    rng = np.random.default_rng(1)

    def once(lengths: int) -> Worth:
        long, noise = rng.integers(1, lengths + 1, (2, 400)).astype(float), rng.normal(size=(2, 400))
        returns = 2.0 * long + noise
        by_mean, sampled = episodes(returns[0] + 9.0, long[0]), episodes(returns[1], long[1])
        found = worth_of(by_mean, sampled)
        assert found is not None
        return found

    for lengths in (1, 30):
        many = [once(lengths) for _ in range(1_000)]
        mean = 9 / (lengths + 1)
        assert np.mean([each.value for each in many]) == pytest.approx(mean, rel=0.02)
        assert np.std([each.value for each in many]) == pytest.approx(np.mean([each.error for each in many]), rel=0.1)

    # A return that is a number plus α times the nats leaves no error, whichever episodes are seen.
    nats = np.arange(8.0)
    exact = worth_of(episodes(3.0 + 2.0 * nats, nats), episodes(3.0 - 2.0 * nats, nats))
    assert (exact.value, exact.error) == pytest.approx((2.0, 0.0), abs=1e-12)


def test_what_pairs_of_episodes_share_is_no_error() -> None:
    """Noise costs 3 for a nat from every state, and the states are worth 0 to 70."""
    states, nats = 10.0 * np.arange(8.0), np.ones(8)
    both = episodes(states + 3.0, 0.5 * nats), episodes(states, 0.5 * nats)
    assert worth_of(*both, paired=True) == Worth(3.0, 0.0, 8)
    assert not worth_of(*both).is_known


def test_the_error_of_pairs_finds_a_worth_of_nothing_as_seldom_as_it_should() -> None:
    """Two standard errors above 0 are passed by chance in 2.3 % of all cases."""
    rng, nats = np.random.default_rng(2), np.full(32, 5.0)
    states, noise = rng.normal(scale=10.0, size=(8_000, 1, 32)), rng.normal(size=(8_000, 2, 32))
    found = [worth_of(*(episodes(each, nats) for each in both), paired=True) for both in states + noise]
    assert np.std([each.value for each in found]) == pytest.approx(np.mean([each.error for each in found]), rel=0.02)
    assert np.mean([each.is_known for each in found]) == pytest.approx(0.027, abs=0.004)  # Student's t of 31


@pytest.mark.parametrize("family", ["gaussian", "squashed", "categorical"])
def test_a_nat_of_what_is_soft_optimal_is_worth_its_temperature(family: str) -> None:
    """One step, of the reward α · log π: then π is the optimum at α, whatever its form."""
    actions = ActionSpace("discrete", (3,)) if family == "categorical" else ActionSpace("continuous", (2,), LOW, HIGH)
    policy = make_policy(PolicySpec(4, actions, family, (8,), initial_std=0.6), 0)
    state = torch.randn(1, 4, generator=torch.Generator().manual_seed(1)).expand(200_000, 4)
    with torch.no_grad():
        distribution = policy(state)
        draws = distribution.log_prob(distribution.sample(torch.Generator().manual_seed(2))).double().numpy()
        by_mode = distribution.log_prob(distribution.mode()).double().numpy()[:10]
        entropy = distribution.entropy().double().numpy()
    found = worth_of(episodes(ALPHA * by_mode, by_mode), episodes(ALPHA * draws, entropy))
    assert found.value == pytest.approx(ALPHA, abs=4.0 * found.error)
    assert found.error < 0.01 * ALPHA
    if family == "gaussian":
        assert by_mode[0] + entropy[0] == pytest.approx(1.0)  # half a nat a number


SHORT = Settings(ranks=1, envs=4, n_steps=16, minibatch=32, steps=128, hidden=(4,), evaluation_episodes=2)


def test_training_ends_with_what_a_nat_is_worth(tmp_path: Path) -> None:
    """Measured on the policy that is handed out, once, and nothing but its card is touched."""
    best = RunFolder(train(tiny("LinearQuadratic"), soft(0.1), tmp_path / "run", SHORT).folder).policy
    known = read_policy(best)
    assert known.card["nat_worth"] == asdict(measure_worth(known.policy, tiny("LinearQuadratic"), 8))
    before = best.read_bytes()
    train(tiny("LinearQuadratic"), soft(0.1), tmp_path / "run", SHORT, resume=True)
    assert best.read_bytes() == before


def test_who_learned_from_an_add_on_alone_is_measured_in_it(tmp_path: Path) -> None:
    env, wishes = tiny("WithoutReward"), (tiny("stay_near"),)
    known = read_policy(RunFolder(train(env, greedy(0.1), tmp_path / "run", SHORT, addon=wishes).folder).policy)
    assert known.card["nat_worth"] == asdict(measure_worth(known.policy, env, 8, addons=wishes, addon_alone=True))
    assert measure_worth(known.policy, env, 8, addons=wishes) is None  # the sum with a reward that is no number


def test_a_card_says_more_and_the_tensors_stay(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    save_policy(path, optimum(), {"name": "mine"}, prior=optimum())
    before = safetensors.torch.load_file(path)
    add_to_card(path, {"nat_worth": {"value": 0.3, "error": 0.01, "episodes": 8}})
    after = safetensors.torch.load_file(path)
    assert read_policy(path).card["name"] == "mine"
    assert read_policy(path).card["nat_worth"]["value"] == 0.3
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_the_priors_that_ship_tell_what_was_measured() -> None:
    rows = Ledger(Path(__file__).parents[2] / "results" / "nat_worth.jsonl").by_key()
    for name in shipped_names():
        card = read_card(find_policy(name))
        assert card["nat_worth"] == {key: rows[name][key] for key in ("value", "error", "episodes")}
        assert weights_from_card(card, 4) == (rows[name]["value"], rows[name]["value"], "")


BRIEF = "the prior's episodes are not known to have 100 steps, which learning its states takes"
WORTHLESS = "what a nat is worth of the old reward is not above 0 by more than chance"


KNOWN, MORE, CHANCE = Worth(0.3, 0.1, 8), Worth(0.7, 0.1, 8), Worth(0.3, 0.2, 8)


def test_the_usual_weights_are_what_the_card_tells() -> None:
    """Without the states where the prior's episodes are too short to learn them, or unknown."""
    for card, expected in (
        ({}, None),
        ({"nat_worth": vars(CHANCE)}, None),  # within its error
        ({"nat_worth": vars(KNOWN)}, (0.3, 0.0, BRIEF)),
        ({"nat_worth": vars(KNOWN), "evaluation": {"evaluation_length": 20.0}}, (0.3, 0.0, BRIEF)),
    ):
        assert weights_from_card(card, 4) == expected


@pytest.mark.parametrize(
    ("basic", "addon", "length", "expected"),
    [
        (KNOWN, CHANCE, 1000.0, (0.3, 0.3, "")),
        (KNOWN, MORE, 1000.0, (0.7, 0.3, "")),  # states are priced by the old reward
        (KNOWN, MORE, 20.0, (0.7, 0.0, BRIEF)),  # too short to learn its states
        (CHANCE, MORE, 1000.0, (0.7, 0.0, WORTHLESS)),
        (None, MORE, 1000.0, (0.7, 0.0, "the old reward is not known")),
        (CHANCE, CHANCE, 1000.0, None),
        (None, None, 0.0, None),
    ],
)
def test_the_weights_of_a_prior_that_tells_nothing(
    basic: Worth | None, addon: Worth, length: float, expected: Any
) -> None:
    assert weights_from_worths(Worths(basic, addon, length), 4) == expected


def test_the_most_that_a_nat_can_be_worth_is_two_errors_above() -> None:
    assert Worths(KNOWN, CHANCE, 1.0).max_worth == pytest.approx(0.3 + 2 * 0.2)
    assert Worths(None, None, 1.0).max_worth == 0.0


def test_states_of_too_many_numbers_have_no_price() -> None:
    """A pixel is a number: a Gaussian over all of them would fill the memory."""
    card = {"nat_worth": vars(KNOWN), "evaluation": {"evaluation_length": 1000.0}}
    many = "an observation has more than 1,000 numbers"
    for numbers, expected in ((MAX_STATE_SIZE, (0.3, 0.3, "")), (MAX_STATE_SIZE + 1, (0.3, 0.0, many))):
        assert weights_from_worths(Worths(KNOWN, CHANCE, 1000.0), numbers) == expected
        assert weights_from_card(card, numbers) == expected


class Stumbles(Tiny):
    """Pays 1 a step, for 10 steps; for 5 where an action has any noise, as the mean action here is 0."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps, self._noisy = 0, False
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        self._noisy |= action[0] != 0.0
        return np.zeros(1, np.float32), 1.0, self._steps == (5 if self._noisy else 10), False, {}


def nats_of_optimum() -> tuple[float, float]:
    """log π of its mode and its entropy, a step."""
    with torch.no_grad():
        distribution = optimum()(torch.zeros(1, 1))
    return float(distribution.log_prob(distribution.mode())), float(distribution.entropy())


def test_nats_are_counted_where_their_episodes_go() -> None:
    """Noise costs 10 - 5: 10 steps of the mode's, and 5 of the entropy."""
    policy, env = optimum(), f"{Path(__file__)}:Stumbles"
    of_mode, entropy = nats_of_optimum()
    value: Any = pytest.approx(5 / (10 * of_mode + 5 * entropy), rel=1e-5)
    assert measure_worth(policy, env, 4) == Worth(value, 0.0, 4)
    steps = 2 * BLOCK_STEPS * WORTH_EPISODES  # each environment goes on until the last episode ends
    assert measure_worths(policy, env, (), 1) == Worths(Worth(value, 0.0, WORTH_EPISODES), None, 5.0, steps)


class Calms(Tiny):
    """Pays 1 a step for an action without noise, without end."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), float(action[0] == 0.0), False, False, {}


@pytest.mark.parametrize("longest", [30, 70])
def test_it_does_not_matter_where_an_episode_is_cut(monkeypatch: pytest.MonkeyPatch, longest: int) -> None:
    """Neither by the longest that counts nor by a time limit: nats are summed over the steps of the return."""
    monkeypatch.setattr("repolicy.prepare.worth.MAX_EPISODE_STEPS", longest)
    for env, limit in ((f"{Path(__file__)}:Calms", math.inf), (f"{Path(__file__)}:calms_within_a_limit", 50)):
        found = measure_worths(optimum(), env, (), 1)
        assert found.basic.value == pytest.approx(1 / sum(nats_of_optimum()), rel=1e-5)
        assert found.length == min(longest, limit)


def calms_within_a_limit() -> Any:
    return gymnasium.wrappers.TimeLimit(Calms(), 50)


def stay(observations: Any, actions: Any, next_observations: Any, info: Any) -> np.ndarray:
    """A tenth of the long environment's own reward."""
    paid = STATE_COST * observations[..., 0] ** 2 + CONTROL_COST * actions[..., 0] ** 2
    return np.asarray(-0.1 * paid)


def test_the_worth_is_sought_in_both_rewards_at_once() -> None:
    found = measure_worths(optimum(), LONG, (f"{Path(__file__)}:stay",), 1)
    assert found.addon.value == pytest.approx(0.1 * found.basic.value, rel=1e-4)
    assert found.basic.value == pytest.approx(ALPHA, abs=3 * found.basic.error + 0.01 * ALPHA)
    assert (found.length, found.basic.episodes) == (200.0, WORTH_EPISODES)


def test_a_cost_that_shows_seldom_is_sought_for_longer() -> None:
    policy, env, wish = optimum(), RARELY, (CALM,)
    once, often = (measure_worths(policy, env, wish, steps) for steps in (1, 10_000))
    assert once.known == []
    assert once.basic.episodes == WORTH_EPISODES < often.basic.episodes
    assert often.basic.is_known
    assert often.basic.value != once.basic.value  # other episodes
    assert often.basic.value == pytest.approx(2 / 16, abs=3 * often.basic.error)  # 20 · (1/16) over 20 / 2 nats


@pytest.mark.parametrize(("cost", "rounds"), [(-0.4, 1), (-0.05, 16), (0.05, 16), (0.4, 4), (0.6, 1)])
def test_a_worth_is_sought_until_it_is_known_or_looks_negative(
    monkeypatch: pytest.MonkeyPatch, cost: float, rounds: int
) -> None:
    """Half the episodes bring 2 more: an error of 0.25 in a round's difference, 0.14 in that of three.

    The first round asks for two errors, later ones for three: else a worth of 0 would seem known in many runs.
    """
    each = np.tile([0.0, 2.0], WORTH_EPISODES // 2)

    def told(*_: Any, deterministic: bool, **__: Any) -> SimpleNamespace:
        basic = each if deterministic else np.sort(each) - cost  # so what one brings tells nothing of the other
        ones = np.ones(WORTH_EPISODES)
        return SimpleNamespace(
            basic=basic, total=basic, addon=None, lengths=10.0 * ones, environment_steps=10 * WORTH_EPISODES,
            deterministic=deterministic, log_policy=4.0 * ones, entropy=ones,
        )  # fmt: skip

    monkeypatch.setattr("repolicy.prepare.worth.evaluate", told)
    found = measure_worths(optimum(), "any", (), 10_000)
    assert found.basic.value == pytest.approx(cost / 5)
    assert found.known == [found.basic] * (cost > 0.1)
    assert found.basic.episodes == rounds * WORTH_EPISODES


def test_nothing_is_sought_where_no_reward_says_anything() -> None:
    found = measure_worths(optimum(), tiny("WithoutReward"), (CALM,), 2_000)
    assert found.basic is None
    assert (found.addon, found.known) == (Worth(0.0, 0.0, WORTH_EPISODES), [])
