"""A tree of choices against the exact residual policy of small processes, and the copies that it grows in."""

import json
from dataclasses import replace
from random import Random
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tiny_envs import constant
from typed_commands import failed

import repolicy
from repolicy import evaluation
from repolicy.addons.addon import Addon, AddonTerm
from repolicy.cli.main import main
from repolicy.envs.batches import GymnasiumEnvs, clone_env, copy_env
from repolicy.errors import UsageError
from repolicy.evaluation import EVALUATION_SEED, run_episodes
from repolicy.exact import MDP, evaluate, solve_residual
from repolicy.objective import residual
from repolicy.planning.planner import Planner, Search
from repolicy.planning.scoring import Score
from repolicy.planning.simulators import CopyModel, MujocoModel
from repolicy.planning.tree import Tree
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import save_policy
from repolicy.policies.policy import Policy, PolicySpec

HORIZON, DISCOUNT = 4, 0.9
SURE = [[[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]]
CHANCE = [[[0.9, 0.1, 0.0], [0.2, 0.8, 0.0]], [[0.6, 0.4, 0.0], [0.0, 0.7, 0.3]], [[0.5, 0.0, 0.5], [0.1, 0.0, 0.9]]]
ADDON = torch.tensor([[0.0, -0.3], [1.0, -1.0], [0.5, -0.3]], dtype=torch.float64)
LOGITS = torch.tensor([[0.5, -1.0], [1.5, 0.0], [0.0, 0.7]], dtype=torch.float64)


@pytest.fixture(autouse=True)
def _short_blocks(monkeypatch):
    """Steps are planned for long, and episodes are cut after a few."""
    monkeypatch.setattr(evaluation, "BLOCK_STEPS", 5)


class Process(gymnasium.Env[Any, Any]):
    """A process of three states, which are seen as three numbers."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (3,))
    action_space = gymnasium.spaces.Discrete(2)
    transitions: Any = CHANCE

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = 0
        return np.eye(3, dtype=np.float32)[self.state], {}

    def step(self, action):
        self.state = self.np_random.choice(3, p=self.transitions[self.state][action])
        return np.eye(3, dtype=np.float32)[self.state], 0.0, False, False, {}


class SureProcess(Process):
    transitions = SURE


class FromFive(SureProcess):
    """The same, whose choices are 5 and 6."""

    action_space = gymnasium.spaces.Discrete(2, start=5)

    def step(self, action):
        return super().step(action - 5)


class OwnRandomness(Process):
    """The same, with generators of its own."""

    def reset(self, *, seed=None, options=None):
        self.old, self.plain = np.random.RandomState(0), Random(0)
        self.within = {"noise": np.random.default_rng(0), "torch": torch.Generator().manual_seed(0)}
        return super().reset(seed=seed)


class Brittle(gymnasium.Env[Any, Any]):
    """One goes up or down. Below −0.5 an episode ends, and a step more is an error; above 0.5 nothing is a number."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0.0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert self.at >= -0.5, "it is over"
        self.at += float(action[0])
        seen = np.array([self.at if self.at < 0.5 else np.nan], np.float32)
        return seen, 0.0, self.at < -0.5, False, {}


def height(observations, actions, next_observations, info):
    return next_observations[..., 0]


class DictProcess(SureProcess):
    """The same, seen as two parts, which it gives in another order than its space has them in."""

    observation_space = gymnasium.spaces.Dict(
        first=gymnasium.spaces.Box(0.0, 1.0, (1,)), others=gymnasium.spaces.Box(0.0, 1.0, (2,))
    )

    def seen(self):
        one_hot = np.eye(3, dtype=np.float32)[self.state]
        return {"others": one_hot[1:], "first": one_hot[:1]}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.seen(), {}

    def step(self, action):
        _, *rest = super().step(action)
        return self.seen(), *rest


def prior() -> Policy:
    policy = Policy(PolicySpec(3, ActionSpace("discrete", (2,)), "categorical", hidden=()))
    with torch.no_grad():
        policy.network.weights[0].copy_(LOGITS.T)
        policy.network.biases[0].zero_()
    return policy


def wish(sign: float):
    def paid(observations, actions, next_observations, info):
        return sign * np.take_along_axis(observations @ ADDON.numpy(), actions.astype(int), -1)[..., 0]

    return paid


def planner(env: type, omega: float, alpha: float, sign: float, samples: int, warm: bool = True, **score) -> Planner:
    asked = Score(Addon((AddonTerm("wish", wish(sign)),)), omega, 0.0, DISCOUNT, None, None)
    search = Search(samples=samples, horizon=HORIZON, temperature=alpha, warm=warm)
    return Planner(prior(), CopyModel(f"{__name__}:{env.__name__}"), replace(asked, **score), search)


def off_by(made: Planner, env: type, omega: float, alpha: float, sign: float, horizon: int = HORIZON) -> float:
    """Total variation between the root's policy and the exact one."""
    mdp = MDP(env.transitions, torch.zeros(3, 2), [1.0, 0.0, 0.0], DISCOUNT, horizon, sign * ADDON)
    wanted = solve_residual(mdp, residual(omega, alpha), LOGITS.log_softmax(-1)).policy[0, 0].numpy()
    tree, state, seen = grown(made)
    found = np.exp(tree.log_policy(tree.root(0, state, seen)))
    assert found.sum() == pytest.approx(1.0)
    return 0.5 * float(np.abs(found - wanted).sum())


@pytest.mark.parametrize(
    ("env", "omega", "alpha", "sign", "samples", "error"),
    [
        (SureProcess, 0.9, 0.3, 1.0, 1_000, 1e-3), (SureProcess, 0.2, 0.6, -1.0, 1_000, 1e-3),
        (DictProcess, 0.9, 0.3, 1.0, 1_000, 1e-3), (Process, 0.2, 0.6, -1.0, 800, 0.02),
    ],
)  # fmt: skip
def test_the_root_decides_as_the_exact_residual_policy(env, omega, alpha, sign, samples, error):
    """Also where observations have parts in another order, and where there is chance.

    The leaves' own values must be right where omega is not alpha, or the last steps would be off.
    """
    few, many = (off_by(planner(env, omega, alpha, sign, n), env, omega, alpha, sign) for n in (30, samples))
    assert many < min(few, error)


def test_a_wish_sees_choices_in_the_numbers_of_the_environment():
    """Though the prior, as those of other libraries, does not know that they begin at 5."""

    def from_five(observations, actions, next_observations, info):
        assert (actions >= 5).all()
        return wish(1.0)(observations, actions - 5, next_observations, info)

    made = planner(FromFive, 0.9, 0.3, 1.0, 1_000, addon=Addon((AddonTerm("wish", from_five),)))
    assert off_by(made, FromFive, 0.9, 0.3, 1.0) < 1e-3


def test_a_leaf_that_is_not_grown_is_worth_what_the_prior_is():
    """By the exact values of the prior, which a single step ahead then improves on."""
    omega, alpha = 0.2, 0.6
    mdp = MDP(SURE, torch.zeros(3, 2), [1.0, 0.0, 0.0], DISCOUNT, HORIZON, ADDON)
    wanted = evaluate(mdp, residual(omega, alpha), LOGITS.log_softmax(-1), LOGITS.log_softmax(-1)).v[0, 0]
    tree, state, seen = grown(planner(SureProcess, omega, alpha, 1.0, 2))
    leaves = [tree.value(tree.leaf(state, seen, HORIZON)) for _ in range(500)]
    assert np.mean(leaves) == pytest.approx(float(wanted), abs=4.0 * np.std(leaves) / len(leaves) ** 0.5)


def test_a_value_stands_for_what_is_still_to_come():
    mdp = MDP(SURE, torch.zeros(3, 2), [1.0, 0.0, 0.0], DISCOUNT, HORIZON - 1, ADDON)
    ahead = solve_residual(mdp, residual(0.9, 0.3), LOGITS.log_softmax(-1)).v[0].numpy()
    made = planner(SureProcess, 0.9, 0.3, 1.0, 50, value=lambda observations: observations @ ahead)
    made = replace(made, search=replace(made.search, horizon=1))
    assert off_by(made, SureProcess, 0.9, 0.3, 1.0) < 1e-5


def grown(made: Planner) -> tuple[Tree, Any, np.ndarray]:
    envs = GymnasiumEnvs(made.model.name, 1, 0)
    seen = envs.reset()
    made.watch(envs)
    return Tree(made, 1), envs.each[0], seen


@pytest.mark.parametrize("warm", [True, False])
def test_it_plans_beside_the_environment_and_keeps_what_it_knows_if_it_is_to(warm):
    made = planner(Process, 0.5, 0.5, 1.0, 15, warm)
    watched, other = (GymnasiumEnvs(made.model.name, 2, 0) for _ in range(2))
    seen, apart = watched.reset(), other.reset()
    made.watch(watched)
    acting = made.actor(1, 2)
    for _ in range(5):
        actions = acting(seen)
        kept = [sum(outcome.count for outcome in known.values()) for known in acting.memory.last_outcomes]
        seen, apart = watched.step(actions).observations, other.step(actions).observations
        assert np.array_equal(seen, apart)
        assert min(kept) > 1
    node = acting.memory.last_outcomes[0][seen[0].tobytes() + bytes([False])].node
    before = node.visits.sum()
    acting(seen)
    assert node.visits.sum() == before + 15 * warm > 15 * warm
    acting.reset_memory(np.array([True, False]))
    assert not acting.memory.last_outcomes[0]


def test_the_same_seed_makes_the_same_episodes():
    made = planner(Process, 0.5, 0.5, 1.0, 5)
    other = replace(made, search=replace(made.search, samples=6))
    one, same, another = (
        run_episodes(each, GymnasiumEnvs(made.model.name, 2, 0), 2, addon=made.score.addon, longest=5)
        for each in (made, made, other)
    )
    assert np.array_equal(one.addon, same.addon)
    assert not np.array_equal(one.log_policy, another.log_policy)


class Cliff(SureProcess):
    """The second choice ends the episode, at the best price there is."""

    def step(self, action):
        seen, *_ = super().step(action)
        return seen, 0.0, bool(action), False, {}


def costs_where_it_goes_on(observations, actions, next_observations, info):
    return -20.0 * (actions[..., 0] == 0)


@pytest.mark.parametrize("addon", [wish(-1.0), costs_where_it_goes_on])
def test_an_end_is_no_way_out(addon):
    made = planner(Cliff, 0.1, 0.5, -1.0, 100, addon=Addon((AddonTerm("wish", addon),)))
    seen = (envs := GymnasiumEnvs(made.model.name, 1, 0)).reset()
    made.watch(envs)
    acting = made.actor(8, 1)
    for _ in range(8):  # ends that were found deep in the tree come near
        seen = envs.step(acting(seen)).observations
    assert acting.log_probs(torch.ones(8, 1, 1)).exp().max() < 1e-3
    tree, state, seen = grown(replace(made, score=replace(made.score, may_end=True)))
    assert (np.exp(tree.log_policy(tree.root(0, state, seen)))[1] > 0.9) == (addon is costs_where_it_goes_on)


STATE = [0]


class Shared(Process):
    """Its state is one for all that are made of it."""

    def step(self, action):
        STATE[0] += 1
        return np.full(3, STATE[0] % 7, np.float32), 0.0, False, False, {}


def test_what_cannot_be_planned_is_one_sentence():
    made = planner(Process, 0.5, 0.5, 1.0, 20)
    with pytest.raises(UsageError, match="a copy goes elsewhere"):
        CopyModel(f"{__name__}:Shared")
    with pytest.raises(UsageError, match=r"call its watch\(env\) first"):
        made.act(np.zeros(3))
    with pytest.raises(UsageError, match="take Gymnasium's"):
        made.watch(object())
    with pytest.raises(UsageError, match="temperature is 0"):
        planner(Process, 0.0, None, 1.0, 20).actor(1, 1)


def test_the_command_plans_choices(tmp_path, capsys, monkeypatch):
    (tmp_path / "mine.py").write_text("from test_tree import Process\ndef wish(o, a, n, i): return n[..., 0] * 1.0\n")
    save_policy(tmp_path / "prior.safetensors", prior(), {})
    mine, out = f"{tmp_path / 'mine.py'}", tmp_path / "plan"
    words = ["plan", str(tmp_path / "prior.safetensors"), "--env", f"{mine}:Process", "--addon", f"{mine}:wish"]
    words += ["--omega", "0.5", "--states", "0", "--samples", "4", "--horizon", "2", "--out", str(out)]
    short = ["--episodes", "1", "--steps", "5"]
    main([*words, *short, "--json"])
    captured = capsys.readouterr()
    assert "it chose what the prior would" in captured.err
    found = repolicy.evaluate(out, episodes=1, longest=5, seed=EVALUATION_SEED, trust=True)

    assert found.backend == "gymnasium"
    assert json.loads(captured.out)["planner"]["addon_reward"]["mean"] == pytest.approx(float(found.addon[0]))
    assert "no use for --value" in failed(capsys, *words, *short, "--value")
    monkeypatch.setattr("repolicy.planning.asking.plan", lambda *_, **__: pytest.fail("it has begun"))
    assert "goes without --hz" in failed(capsys, *words, "--live")


SEARCH = Search(samples=6, horizon=4)


@pytest.mark.filterwarnings("ignore:.*out of date")
def test_it_acts_in_an_environment_of_a_loop_of_ones_own():
    """The same action as where the environment stands among others, and it is not stepped."""
    made = repolicy.plan("hopper", "height", omega=0.1, states=0.0, search=SEARCH)
    copying = replace(made, model=CopyModel(made.model.name))
    envs, alone = GymnasiumEnvs(made.model.name, 1, 7), gymnasium.make("Hopper-v4")
    actions = []
    for seen, watched in ((envs.reset()[0], envs), (alone.reset(seed=7)[0], alone)):
        copying.watch(watched)
        actions.append(copying.act(seen))
    assert actions[0] == pytest.approx(actions[1], abs=1e-6)
    assert alone.unwrapped.data.time == 0.0


@pytest.mark.filterwarnings("ignore:.*out of date")
@pytest.mark.parametrize(("prior", "wish"), [("halfcheetah", "hind_leg=10"), ("hopper", "height")])
def test_copies_plan_what_mujocos_batches_plan(prior, wish):
    """From the state that an observation shows: single numbers of it are rounded there."""
    made = repolicy.plan(prior, wish, omega=0.1, states=0.0, search=SEARCH)
    envs = GymnasiumEnvs(made.model.name, 2, 0)
    seen = envs.reset()
    for env, row in zip(envs.each, MujocoModel(made.model.name).states(seen), strict=True):
        data = env.unwrapped.data
        env.unwrapped.set_state(
            row[1 : 1 + data.qpos.size], row[1 + data.qpos.size : 1 + data.qpos.size + data.qvel.size]
        )
    copying = replace(made, model=CopyModel(made.model.name))
    copying.watch(envs)
    before = [env.unwrapped.data.qpos.copy() for env in envs.each]
    draws = np.random.default_rng(0).standard_normal((2, 6, 4, made.actions.width))
    plans = np.zeros((2, 4, made.actions.width))
    batch, copied = (each.candidates(seen, plans, draws) for each in (made, copying))
    assert copied.scores == pytest.approx(batch.scores, abs=1e-9)
    assert copied.plans == pytest.approx(batch.plans, abs=1e-9)
    assert np.array_equal(before, [env.unwrapped.data.qpos for env in envs.each])


def test_copies_are_not_stepped_beyond_their_end_and_those_that_break_down_do_not_count(monkeypatch):
    monkeypatch.setattr("repolicy.planning.asking.may_end", lambda _: False)
    monkeypatch.setattr("repolicy.planning.asking.rollouts_in", lambda *_: [])  # which would break down
    made = repolicy.plan(
        Policy(PolicySpec(1, ActionSpace("continuous", (1,), (-1.0,), (1.0,)))),
        height, env=f"{__name__}:Brittle", omega=0.1, states=0.0, search=replace(SEARCH, samples=50),
    )  # fmt: skip
    seen = (envs := GymnasiumEnvs(made.env, 1, 0)).reset()
    made.watch(envs)
    found = made.candidates(seen, np.zeros((1, 4, 1)), np.random.default_rng(0).standard_normal((1, 50, 4, 1)))
    broken = np.isneginf(found.scores)
    assert 0 < broken.sum() < 40
    assert found.weights[~broken].sum() == pytest.approx(1.0)


def test_no_generator_of_an_environment_is_foreseen():
    env = OwnRandomness()
    env.reset(seed=1)
    copies = [copy_env(env, np.random.default_rng(seed)) for seed in (0, 0, 1)]

    def draws(each):
        numpy = [stream.random() for stream in (each.old, each.plain, each.np_random, each.within["noise"])]
        return [*numpy, torch.rand((), generator=each.within["torch"]).item()]

    first, same, other, own = map(draws, [*copies, env])
    assert first == same
    assert len({*first, *other, *own}) == 15


def test_what_is_no_robot_is_planned_in_copies():
    made = repolicy.plan(
        Policy(PolicySpec(3, ActionSpace("continuous", (1,), (-2.0,), (2.0,)))),
        constant, env="Pendulum-v1", omega=0.1, states=0.0, search=SEARCH,
    )  # fmt: skip
    assert made.backend == "gymnasium"
    found = repolicy.evaluate(made, "Pendulum-v1", episodes=2, addon=constant, longest=3)
    assert found.lengths.tolist() == [3, 3]


def test_a_twin_stands_where_the_environment_stands():
    """Even where its class would begin anew when it is pickled, as Gymnasium's robots do."""
    env = gymnasium.make("Ant-v5")
    env.reset(seed=1)
    for _ in range(3):
        env.step(env.action_space.sample())
    other, action = clone_env(env, {}), env.action_space.sample()
    one, same = (each.step(action) for each in (env, other))
    assert np.array_equal(one[0], same[0])
    assert one[1] == same[1]
    assert other.unwrapped.data is not env.unwrapped.data
