"""A rollout of environments that count: what is seen, kept, cut and reported."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from tiny_envs import tiny

from repolicy.addons.addon import combine_addons
from repolicy.envs.making import make_envs
from repolicy.envs.rollout import Collector, staggered_cuts
from repolicy.errors import NumericError
from repolicy.policies.normalizer import moment_sums
from repolicy.policies.policy import Policy
from repolicy.runs.request import spec_for
from repolicy.runs.settings import Settings


def collector(name: str, n_steps: int, count: int = 2) -> tuple[Collector, Policy]:
    batch = make_envs(tiny(name), count, seed=0)
    policy = Policy(spec_for(batch, Settings(hidden=(4,))))
    return Collector(batch, n_steps, torch.Generator().manual_seed(0)), policy


def test_episodes_follow_each_other_without_a_gap() -> None:
    """Episode 1 has 3 steps and terminates, episode 2 has 4 and is cut, episode 3 has 5 and terminates."""
    collect, policy = collector("Counter", n_steps=13)
    rollout = collect.collect(policy)
    episode = [1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 4]
    before = [0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3, 4, 0]
    for n in range(2):
        assert rollout.observations[:-1, n].tolist() == [list(pair) for pair in zip(episode, before, strict=True)]
        assert rollout.observations[-1, n].tolist() == [4, 1]
        assert rollout.next_observations[:, n].tolist() == [[e, t + 1] for e, t in zip(episode, before, strict=True)]
        assert rollout.basic[:, n].tolist() == [10 * e + t + 1 for e, t in zip(episode, before, strict=True)]
        assert np.flatnonzero(rollout.terminated[:, n]).tolist() == [2, 11]
        assert np.flatnonzero(rollout.truncated[:, n]).tolist() == [6]
    assert rollout.cut_indices.tolist() == [[6, 0], [6, 1]]
    assert rollout.cut_observations.tolist() == [[2, 4], [2, 4]]
    assert rollout.episodes.lengths == [3, 3, 4, 4, 5, 5]
    assert rollout.episodes.returns == [36.0, 36.0, 90.0, 90.0, 165.0, 165.0]


def test_the_next_rollout_goes_on_where_this_one_stopped() -> None:
    collect, policy = collector("Counter", n_steps=2)
    rollouts = [collect.collect(policy) for _ in range(4)]
    seen = np.concatenate([rollout.observations[:-1, 0] for rollout in rollouts])
    assert seen.tolist() == [[1, 0], [1, 1], [1, 2], [2, 0], [2, 1], [2, 2], [2, 3], [3, 0]]
    for one, two in itertools.pairwise(rollouts):
        assert np.array_equal(one.observations[-1], two.observations[0])
    assert rollouts[1].episodes.returns == [36.0, 36.0]  # begun in the rollout before


def test_actions_reach_the_environment_as_they_were_sampled() -> None:
    """Far outside of the box, too."""
    collect, policy = collector("Counter", n_steps=10)
    with torch.no_grad():
        policy.network.biases[-1].fill_(5.0)
    rollout = collect.collect(policy)
    assert float(rollout.actions.min()) > 1.0
    np.testing.assert_array_equal(rollout.info["action_seen"], rollout.actions[..., 0].numpy())
    assert rollout.info["clock"][:, 0].tolist() == [1, 2, 3, 1, 2, 3, 4, 1, 2, 3]
    assert set(rollout.info) == {"clock", "action_seen"}  # numbers only


def test_infos_are_numbers_in_every_step_and_no_environment_decides_their_kind() -> None:
    """Gymnasium gives all environments the kind of number that the first one tells: 0.5 beside a whole 0 would be 0."""
    collect, policy = collector("Rare", n_steps=5)
    told = collect.collect(policy).info
    costs = {tuple(column) for column in told["cost"].T}
    assert costs == {(0.5, 0.0, 0.5, 0.5, 0.0), (0.0, 0.5, 0.0, 0.0, 0.5)}  # in episodes of 3 and 4 steps
    assert told["second"].tolist() == [[0, 0], [7, 7], [0, 0], [0, 0], [7, 7]]
    assert np.array_equal(told["fast"], told["cost"] > 0)  # a truth value
    assert {key: each.dtype for key, each in told.items()} == dict.fromkeys(("cost", "fast", "second"), np.dtype(float))


def test_actions_are_the_policys_at_normalized_observations() -> None:
    collect, policy = collector("LinearQuadratic", n_steps=50, count=8)
    policy.normalizer.update(moment_sums(np.random.default_rng(0).normal(1.0, 3.0, (100, 1)).astype(np.float32)))
    rollout = collect.collect(policy)
    expected = policy.log_prob(torch.from_numpy(rollout.observations[:-1]), rollout.actions)
    torch.testing.assert_close(rollout.log_probs, expected)
    with torch.no_grad():
        noise = rollout.actions - policy(torch.from_numpy(rollout.observations[:-1])).mode()
    assert abs(float(noise.mean())) < 0.15
    assert float(noise.std()) == pytest.approx(1.0, abs=0.15)
    again, _ = collector("LinearQuadratic", n_steps=50, count=8)
    assert torch.equal(again.collect(policy).actions, rollout.actions)


@pytest.mark.parametrize(
    ("actions", "family"),
    [("matrix", "squashed"), ("double", "state_squashed"), ("choice", "auto"), ("table", "auto"), ("switches", "auto")],
)
def test_add_ons_see_the_actions_that_the_environment_got(actions: str, family: Any) -> None:
    """The add-on raises where they differ from what the environment was told. Scored are those that were sampled."""
    batch = make_envs(tiny(f"Told?actions={actions}"), 3, seed=0)
    policy = Policy(spec_for(batch, Settings(hidden=(4,), family=family)))
    rollout = Collector(batch, 7, torch.Generator().manual_seed(0)).collect(policy)
    assert rollout.actions.shape == (7, 3, batch.actions.width)
    assert combine_addons([tiny("was_told")]).reward(rollout.transitions).shape == (7, 3)


def test_a_first_episode_that_is_cut_is_bootstrapped_and_counts_in_no_statistics() -> None:
    """Episodes of 3, 4, 5, ... steps: environment 0's first is cut after 2; environment 1's would be after it ended."""
    batch = make_envs(tiny("Counter"), 2, seed=0)
    policy = Policy(spec_for(batch, Settings(hidden=(4,))))
    cuts = np.array([2, 5])
    rollout = Collector(batch, 9, torch.Generator().manual_seed(0), cuts=cuts).collect(policy)
    assert rollout.observations[:4, 0].tolist() == [[1, 0], [1, 1], [2, 0], [2, 1]]
    assert rollout.next_observations[1, 0].tolist() == [1, 2]
    assert rollout.cut_indices.tolist() == [[1, 0], [5, 0], [6, 1]]  # the first by us, the others by the time limit
    assert rollout.cut_observations[0].tolist() == [1, 2]
    assert np.flatnonzero(rollout.terminated[:, 0]).tolist() == []
    assert np.flatnonzero(rollout.terminated[:, 1]).tolist() == [2]
    assert rollout.episodes.lengths == [3, 4, 4]


@pytest.mark.parametrize(
    ("name", "backend", "limit"),
    [("Pendulum-v1", "envpool", 200), ("Pendulum-v1", "gymnasium", 200), (tiny("endless_with_time_limit"), "auto", 5)],
)
def test_episodes_that_only_a_limit_ends_begin_at_times_spread_over_it(name: str, backend: Any, limit: int) -> None:
    """In the second limit's worth of steps, one environment of four ends every quarter."""
    if backend == "envpool":
        pytest.importorskip("envpool")
    batch = make_envs(name, 4, 0, backend)
    assert batch.limit == limit
    policy = Policy(spec_for(batch, Settings(hidden=(4,))))
    cuts = [staggered_cuts(limit, first, 2, 4) for first in (0, 2)]  # of two ranks
    assert [cut.tolist() for cut in cuts] == [[limit // 4, limit // 2], [3 * limit // 4, limit]]
    assert make_envs(tiny("Counter"), 1, 0).limit is None
    assert staggered_cuts(None, 0, 3, 3).tolist() == [0, 0, 0]
    collect = Collector(batch, 2 * limit, torch.Generator().manual_seed(0), cuts=np.concatenate(cuts))
    rollout = collect.collect(policy)
    ends = [np.flatnonzero(rollout.truncated[:, n]) + 1 for n in range(4)]
    assert [end.tolist() for end in ends[:3]] == [[cut, cut + limit] for cut in np.concatenate(cuts)[:3].tolist()]
    assert ends[3].tolist() == [limit, 2 * limit]
    assert sorted(set(rollout.episodes.lengths)) == [limit]


@pytest.mark.parametrize("n_steps", [11, 20], ids=["at the rollout's end", "within the rollout"])
def test_an_observation_that_is_not_finite_is_named(n_steps: int) -> None:
    collect, policy = collector("NanObservation", n_steps)
    wrong = "environment 0 of .*NanObservation' returned an observation that is not finite .rollout step 11, after 11"
    with pytest.raises(NumericError, match=wrong):
        collect.collect(policy)
