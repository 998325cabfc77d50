"""Wishes with a past: hand-made arrays, EnvPool's own numbers, NumPy and torch alike, and rollouts of any length."""

from contextlib import closing
from functools import partial
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from repolicy.addons import gaits
from repolicy.addons.addon import combine_addons
from repolicy.addons.addon_names import wishes_of
from repolicy.addons.gaits import ActionRate, AirTime, Impact, Jerk, Symmetry
from repolicy.addons.registered import REGISTERED
from repolicy.envs.making import make_envs
from repolicy.envs.rollout import AddonState, Collector, Rollout, Transitions
from repolicy.errors import UsageError
from repolicy.evaluation import evaluate
from repolicy.planning.asking import plan
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.priors.opening import load_policy
from repolicy.rql.wrapping import WithAddon

GO1 = "Go1JoystickFlatTerrain-v1"
BEGAN = np.array([[1, 1], [0, 0], [0, 1], [0, 0]], bool)  # the second robot's episode ends after two steps
ACTIONS = np.array(
    [[[0.0, 1.0], [1.0, 0.0]], [[2.0, 1.0], [4.0, 0.0]], [[1.0, 1.0], [7.0, 2.0]], [[1.0, 4.0], [7.0, 0.0]]]
)
CONTACT = np.array([[[1, 0], [0, 0]], [[0, 0], [0, 1]], [[0, 1], [1, 1]], [[1, 1], [0, 1]]], bool)  # [T, N, F]
SPEED = np.array(
    [[[0.1, 0.2], [0.3, 0.4]], [[0.5, 0.6], [0.7, 0.8]], [[0.9, 1.0], [1.1, 1.2]], [[1.3, 1.4], [1.5, 1.6]]]
)

WITH_PAST: list[tuple[Any, tuple[np.ndarray, ...], list[list[float]]]] = [
    (ActionRate, (ACTIONS,), [[0, 0], [-4, -9], [-1, 0], [-9, -4]]),
    (Jerk, (ACTIONS,), [[0, 0], [-4, -9], [-9, 0], [-1 - 9, -4]]),
    # Seconds of half a step: the first robot's right foot lands after two steps in the air, its left one after two.
    # The second's right one lands after one; what was in the air before its second episode does not count there.
    (lambda: AirTime(0.5, 0.25), (CONTACT,), [[0, 0], [0, 0.75], [1.25, 0], [1.25, 0]]),
    (Impact, (CONTACT, SPEED), [[0, 0], [0, -0.16], [-0.36, 0], [-0.81, 0]]),
    (
        lambda: Symmetry(2.0),
        (ACTIONS[..., :1], ACTIONS[..., 1:]),
        [[-0.25, -0.25], [-0.0625, -5.0625], [-0.015625, -6.25], [-2.06640625, -22.5625]],
    ),
]


@pytest.mark.parametrize(("make", "parts", "expected"), WITH_PAST)
@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_by_hand_and_each_robot_forgets_at_its_own_episodes_end(
    make: Any, parts: tuple[np.ndarray, ...], expected: list[list[float]], kind: Any
) -> None:
    wish, buffers = make(), [kind(part[0].copy()) for part in parts]
    found = []
    for t in range(len(BEGAN)):
        for buffer, part in zip(buffers, parts, strict=True):
            buffer[...] = kind(part[t])  # as simulators do, which keep one tensor for all steps
        found.append(np.asarray(wish(*buffers, kind(BEGAN[t]))))
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize(("make", "parts"), [case[:2] for case in WITH_PAST])
@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_what_a_simulator_that_failed_gave_ends_with_the_episode(make: Any, parts: Any, kind: Any) -> None:
    wish, fresh, began = make(), make(), kind([True, True])
    wish(*(kind(part[0] if part.dtype == bool else part[0] * np.nan) for part in parts), began)
    for t in (2, 3):
        step = [kind(part[t]) for part in parts]
        np.testing.assert_array_equal(wish(*step, began), fresh(*step, began))
        began = ~began


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_without_a_past_by_hand(kind: Any) -> None:
    torques, velocities = kind([[1.0, -3.0], [0.5, 0.0]]), kind([[2.0, 2.0], [-4.0, 9.0]])
    low, high = kind([-1.0, -2.0]), kind([1.0, 2.0])
    assert gaits.power(torques, velocities).tolist() == [-8.0, -2.0]
    assert gaits.torque_peak(torques).tolist() == [-3.0, -0.5]
    assert gaits.torque_peak(torques, 2.0).tolist() == [-1.0, 0.0]
    assert gaits.joint_margin(kind([[0.75, 0.0], [-1.5, 2.0]]), low, high, 0.5).tolist() == [-0.25, -1.5]
    assert gaits.still(kind([[0.0, 0.05], [0.0, 0.2]]), velocities).tolist() == [-8.0, 0.0]
    feet = kind(
        [[[0.0, 0.0], [0.0, 3.0], [4.0, 0.0]], [[0.0, 0.0], [0.0, 0.0], [0.0, 1.0]]]
    )  # apart by 3, 4, 5; 0, 1, 1
    assert gaits.feet_apart(feet, 3.5).tolist() == [-0.5, -3.5 - 2.5 - 2.5]


def test_action_rate_and_air_time_are_those_of_playground() -> None:
    """EnvPool counts a change of action from 0 on, so its first steps are others. It shows contacts a step later."""
    pytest.importorskip("envpool")
    rng, rate, air = np.random.default_rng(0), ActionRate(), AirTime(0.02, 0.1)
    with closing(make_envs(GO1 + "?observe=state,privileged_state&feet_air_time_scale=1", 4, 0)) as envs:
        envs.reset()
        began, landed, actions = np.ones(4, bool), 0, np.zeros((4, 12), np.float32)
        told, commanded, before_began = np.zeros(4), np.zeros(4, bool), began
        for t in range(150):
            actions = (0.8 * actions + 0.4 * rng.normal(size=(4, 12))).astype(np.float32)
            step = envs.step(actions)
            changed = rate(actions, began)
            np.testing.assert_allclose(0.01 * changed[~began], step.info["reward_action_rate"][~began], atol=1e-5)
            if t > 0:  # of the step before
                paid = commanded * air(step.final[:, 48 + 99 : 48 + 103] > 0.5, before_began)
                np.testing.assert_allclose(paid[~began], told[~began], atol=1e-6)
                landed += int((paid != 0).sum())
            told, commanded = step.info["reward_feet_air_time"], np.linalg.norm(step.final[:, 45:48], axis=1) > 0.01
            before_began, began = began, step.terminated | step.truncated
        assert landed > 20


def test_terms_of_playground_have_the_sign_of_their_weight() -> None:
    """As their descriptions say: c times a quantity that is never negative."""
    pytest.importorskip("envpool")
    names = ("energy", "torques", "smooth", "clearance")
    assert all((REGISTERED[name].make.__doc__ or "").startswith("c·") for name in names)
    for c in (0.1, -0.1):
        scales = "&".join(f"{term}_scale={c}" for term in ("energy", "torques", "action_rate", "feet_clearance"))
        with closing(make_envs(f"{GO1}?{scales}", 2, 0)) as envs:
            before = envs.reset()
            actions = np.ones((2, 12), np.float32)
            step = envs.step(actions)
            for name in names:
                earned = REGISTERED[name].make()(before, actions, step.final, step.info)
                assert (np.sign(earned) == np.sign(c)).all(), name


class FromStart:
    """An add-on with a past: the steps of the episode so far, times the first observation's first number."""

    def __call__(self, observations: Any, actions: Any, after: Any, info: Any, began: Any) -> Any:
        first = observations[:, 0] * 1.0
        self.steps = np.where(began, 1, getattr(self, "steps", 0) + 1)
        self.first = np.where(began, first, getattr(self, "first", first))
        return self.steps * self.first


class Weighed:
    """An add-on with a past and a parameter."""

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def __call__(self, observations: Any, actions: Any, after: Any, info: Any, began: Any) -> Any:
        return self.weight * began


def test_a_class_with_a_parameter_is_handed_over_with_its_value() -> None:
    addon = combine_addons(wishes_of([partial(Weighed, 3.0), partial(Weighed, 0.5)]))
    steps = Transitions(ACTIONS, ACTIONS, ACTIONS, {}, AddonState(BEGAN, {}))
    assert [rewards.tolist() for rewards in addon.weighted_rewards(steps)] == [
        (3.0 * BEGAN).tolist(), (0.5 * BEGAN).tolist()
    ]  # fmt: skip


def collected(blocks: list[int]) -> list[Rollout]:
    """Rollouts of three HalfCheetahs whose episodes end after 7 steps, and one's first after 3."""
    policy, found = load_policy("halfcheetah"), list[Rollout]()
    with closing(make_envs("HalfCheetah-v4", 3, 0)) as envs:
        collector = Collector(envs, 1, torch.Generator().manual_seed(0), np.array([0, 3, 0]), longest=7)
        for steps in blocks:
            collector.n_steps = steps
            found.append(collector.collect(policy, deterministic=True))
    return found


@pytest.mark.parametrize(
    "wishes", [("action_rate",), ("jerk=2", "hind_leg", "action_rate"), (f"{__name__}:FromStart",)]
)
def test_where_one_rollout_ends_and_the_next_begins_does_not_matter(wishes: tuple[str, ...]) -> None:
    cut, whole, addon = collected([4, 1, 9, 6]), collected([20]), combine_addons(wishes)
    twice = [[addon.reward(rollout.transitions) for _ in range(2)] for rollout in cut]  # asked again, the same
    paid, again = map(np.concatenate, zip(*twice, strict=True))
    np.testing.assert_array_equal(paid, again)
    [rollout] = whole
    np.testing.assert_array_equal(paid, addon.reward(rollout.transitions))
    for n in range(3):  # each episode by itself
        starts = [*np.flatnonzero(rollout.ages[:, n] == 1), 20]
        for begin, end in pairwise(starts):
            steps = [part[begin:end, n : n + 1] for part in rollout.transitions[:3]]
            alone = addon.reward(Transitions(*steps, {}, AddonState(rollout.ages[begin:end, n : n + 1] == 1, {})))
            np.testing.assert_allclose(paid[begin:end, n], alone[:, 0])
    assert rollout.ages[3, 1] == rollout.ages[7, 0] == 1


def test_an_evaluation_reports_it() -> None:
    one = evaluate("halfcheetah", episodes=2, addon=("action_rate=0.5", "jerk"), longest=30)
    assert one.metric_name == "mean squared change"
    assert one.metric is not None
    np.testing.assert_allclose(one.wishes["action_rate"], -0.5 * one.metric * one.lengths)
    assert (one.metric > 0).all()


def test_choices_have_no_rate_and_a_planner_no_past() -> None:
    with pytest.raises(UsageError, match="compares actions that are numbers"):
        evaluate(Policy(PolicySpec(4, ActionSpace("discrete", (2,)), "categorical")), "CartPole-v1", 1, addon="jerk")
    choosing = WithAddon(gymnasium.make("CartPole-v1"), "jerk")
    choosing.reset(seed=0)
    with pytest.raises(UsageError, match="compares actions that are numbers"):
        choosing.step(1)
    with pytest.raises(UsageError, match="add-on 'jerk' has a past, and a planner's"):
        plan("halfcheetah", ("hind_leg", "jerk"))


def test_the_wrapper_of_one_environment_pays_the_same() -> None:
    env, rng = WithAddon(gymnasium.make("HalfCheetah-v5"), "jerk=-1"), np.random.default_rng(0)
    for seed in range(2):  # the second episode knows nothing of the first
        env.reset(seed=seed)
        actions = rng.uniform(-1, 1, (5, 6)).astype(np.float32)
        paid = [env.step(action)[4]["addon_reward"] for action in actions]
        held = np.concatenate([actions[:1], actions[:1], actions])  # as before the first step
        np.testing.assert_allclose(paid, np.square(np.diff(held, 2, axis=0)).sum(1), rtol=1e-5, atol=1e-6)


def test_symmetry_compares_the_joints_of_walker2ds_legs() -> None:
    env = WithAddon(gymnasium.make("Walker2d-v5"), "symmetry(steps=1)")  # a mean of one step
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(5):
        info = env.step(env.action_space.sample())[4]
        joint = env.unwrapped.data.joint
        gaps = [
            joint(f"{name}_left_joint").qpos[0] - joint(f"{name}_joint").qpos[0] for name in ("thigh", "leg", "foot")
        ]
        assert info["addon_reward"] == pytest.approx(-float(np.square(gaps).sum()), rel=1e-5)
