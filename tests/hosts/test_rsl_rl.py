"""rsl_rl's runner with our algorithm: nothing but the rewards is changed."""

import copy
import math
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import two_processes
from rsl_rl.algorithms import PPO
from rsl_rl.runners import OnPolicyRunner
from runner_envs import NETWORKS, OURS, SIZE, Drift, settings
from runners import POLICY_ACTOR, Algorithm, checkpoint, collected, residual, runner, small_policy
from small import same
from tensordict import TensorDict

from repolicy.hosts.rsl_rl import ResidualPPO, warn_about_settings
from repolicy.objective import reformulated


def tensors(*modules: Any) -> list[torch.Tensor]:
    """Copies of all that modules hold."""
    return [tensor.clone() for module in modules for tensor in module.state_dict().values()]


def networks(algorithm: Any) -> list[torch.Tensor]:
    return tensors(algorithm.actor, algorithm.critic)


# Equal to the host ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("network", NETWORKS)
def test_without_weights_it_is_rsl_rls_ppo_to_the_bit(network: str) -> None:
    theirs, ours = runner(network), runner(network, residual(omega=0.0, alpha=0.0))
    for each in (theirs, ours):
        torch.manual_seed(5)
        each.learn(4)
    assert isinstance(ours.alg, ResidualPPO)
    assert same(networks(theirs.alg), networks(ours.alg))


@pytest.mark.parametrize(
    ("more", "bonus"), [({}, 0.0), ({"entropy_coef": 0.02}, 0.02), ({"omega": 0.0, "alpha": 0.0}, 0.01)]
)
def test_beside_a_weight_nobody_is_paid_twice_for_the_entropy(more: Algorithm, bonus: float) -> None:
    assert runner(algorithm=residual(small_policy()) | more).alg.entropy_coef == bonus


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"schedule": "adaptive"}, "the schedule 'adaptive' may raise the learning rate"),
        ({"rnd_cfg": {"weight": 2.0}}, "rnd_cfg adds a reward for new states"),
        ({"symmetry_cfg": {"use_mirror_loss": True}}, "symmetry_cfg needs a prior"),
        ({"symmetry_cfg": {"use_mirror_loss": False}}, ""),
    ],
)
def test_what_works_against_a_prior_is_said(capsys: pytest.CaptureFixture[str], more: Algorithm, said: str) -> None:
    warn_about_settings({"schedule": "fixed"} | more)
    found = capsys.readouterr().out
    assert said in found
    assert bool(found) == bool(said)


@pytest.mark.parametrize("stood", [0, 9600])
@pytest.mark.usefixtures("_few_episodes")
def test_a_curriculum_goes_on_where_the_priors_stood(tmp_path: Path, stood: int) -> None:
    """Isaac Lab's checkpoints do not tell where, and its wrapper has no reset of its own."""
    path = checkpoint(tmp_path)
    saved = torch.load(path, weights_only=False)
    told = {"env_state": {"common_step_counter": stood}} if stood else {}
    torch.save(saved | {"infos": told}, path)  # as mjlab's runner saves it

    class Counting(Drift):
        def __init__(self) -> None:
            super().__init__()
            self.unwrapped, self.resets_at = SimpleNamespace(common_step_counter=0, reset=self.begin_anew), list[int]()

        def begin_anew(self) -> None:
            self.resets_at.append(self.unwrapped.common_step_counter)
            self.episode_length_buf = torch.zeros_like(self.episode_length_buf)

        def step(self, actions: torch.Tensor) -> Any:
            self.unwrapped.common_step_counter += 1
            return super().step(actions)

    env = Counting()
    started = runner(algorithm={"class_name": OURS, "prior": str(path)}, env=env)
    assert env.unwrapped.common_step_counter == stood
    started.alg.train_mode()
    assert env.resets_at[0] == stood  # before anything is measured
    assert len(env.resets_at) > 2
    assert env.resets_at[-1] == env.unwrapped.common_step_counter == stood  # and after it


@pytest.mark.parametrize("network", NETWORKS)
def test_the_storage_holds_the_reformulated_reward(tmp_path: Path, network: str) -> None:
    ours = runner(network, residual(str(checkpoint(tmp_path, network))), seed=3)
    st = collected(ours)
    prior, log_prior = copy.deepcopy(ours.alg.prior.model), []
    prior.reset()
    for t in range(st.num_transitions_per_env):  # a memory of its own, from the start
        with torch.no_grad():
            prior(st.observations[t], stochastic_output=True)
            log_prior.append(prior.get_output_log_prob(st.actions[t]))
        prior.reset(st.dones[t].squeeze(-1))
    paid = torch.stack(ours.env.paid)
    reward = reformulated(ours.alg.steering.objective, paid, torch.stack(log_prior), st.actions_log_prob.squeeze(-1))
    bootstrapped = st.rewards.squeeze(-1) - reward.total
    ends = st.dones.squeeze(-1) == 1
    assert float(bootstrapped[~ends].abs().max()) < 1e-6
    values = ours.alg.gamma * st.values.squeeze(-1)  # at a time limit, rsl_rl adds this and nothing else
    both = torch.minimum(bootstrapped.abs(), (bootstrapped - values).abs())
    assert ends.any()
    assert float(both[ends].max()) < 1e-6


def test_the_prior_has_its_own_normalizer(tmp_path: Path) -> None:
    checkpoint(tmp_path).rename(tmp_path / "model_10.pt")
    (tmp_path / "model_9.pt").touch()
    ours = runner(algorithm=residual(str(tmp_path), copy_prior=False), seed=3)  # a folder names its newest
    before = tensors(ours.alg.prior)
    ours.learn(3)
    assert same(before, tensors(ours.alg.prior))
    assert not torch.equal(ours.alg.actor.obs_normalizer._mean, ours.alg.prior.model.obs_normalizer._mean)


@pytest.mark.parametrize("network", ["mlp", "lstm"])
def test_a_student_of_rsl_rls_distillation_is_a_prior(tmp_path: Path, network: str) -> None:
    path = checkpoint(tmp_path, network)
    saved = torch.load(path, weights_only=False)
    actor = saved["actor_state_dict"]
    torch.save({"student_state_dict": actor, "teacher_state_dict": {}, "optimizer_state_dict": {}}, path)
    ours = runner(network, residual(str(path)), seed=3)
    for module in (ours.alg.prior.model, ours.alg.actor):
        assert all(torch.equal(tensor, actor[name]) for name, tensor in module.state_dict().items())


# Start, warm-up, budget, files ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("network", NETWORKS)
def test_the_actor_begins_as_its_prior_and_waits_for_the_critic(tmp_path: Path, network: str) -> None:
    ours = runner(network, residual(str(checkpoint(tmp_path, network)), critic_warmup=2))
    actor, critic = ours.alg.actor, ours.alg.critic
    start, fresh = tensors(actor), tensors(critic)
    assert same(start, tensors(ours.alg.prior.model))
    rate = ours.alg.learning_rate
    actor.get_kl_divergence = lambda old, new: torch.full(new[0].shape[:-1], 1e-9)  # of rounding alone
    ours.learn(2)
    assert same(start, tensors(actor))
    assert not same(fresh, tensors(critic))
    assert ours.alg.learning_rate == rate, "the KL of an actor that stands still would speed up its learning"
    ours.learn(1)
    assert ours.alg.learning_rate > rate
    assert not same(start, tensors(actor))
    assert ours.alg.schedule == "adaptive"


@torch.no_grad()
def values(algorithm: Any) -> torch.Tensor:
    torch.manual_seed(9)
    seen = TensorDict({"policy": torch.randn(50, SIZE)}, batch_size=[50])
    return algorithm.critic(seen)


def assert_same_values(one: Any, other: Any) -> None:
    assert values(one).std() > 0.1
    torch.testing.assert_close(values(one), values(other), rtol=1e-4, atol=1e-4)


def test_rsl_rls_own_ppo_reads_a_checkpoint_of_ours_and_ours_one_of_its(tmp_path: Path) -> None:
    """A critic of ours learns in the unit of its returns; in files it predicts rewards, as any other."""
    how = residual(str(checkpoint(tmp_path)), alpha=0.3, kl_budget=0.5)
    ours, plain = runner(algorithm=how), runner(seed=7)
    ours.learn(3)
    own = networks(ours.alg)
    ours.save(str(tmp_path / "ours.pt"))
    assert same(networks(ours.alg), own)
    plain.load(str(tmp_path / "ours.pt"))
    assert same(tensors(ours.alg.actor), tensors(plain.alg.actor))
    assert_same_values(plain.alg, ours.alg)
    again = runner(algorithm=how)
    again.load(str(tmp_path / "ours.pt"))
    assert same(own, networks(again.alg))
    assert_same_values(again.alg, ours.alg)
    for more, parts in ((residual(omega=0, alpha=0), None), (how, {"actor": True, "critic": True})):
        other = runner(algorithm=more)
        other.load(str(tmp_path / "ours.pt"), load_cfg=parts)
        assert_same_values(other.alg, ours.alg)

    plain.learn(1)
    plain.save(str(tmp_path / "theirs.pt"))
    theirs = torch.load(tmp_path / "theirs.pt")
    torch.save(again.alg.save() | theirs, tmp_path / "mixed.pt")  # as if plain PPO had kept what it does not know
    for file in ("theirs.pt", "mixed.pt"):
        ours.load(str(tmp_path / file))
        assert_same_values(ours.alg, plain.alg)
        collected(ours).clear()  # whose returns set a unit
        assert_same_values(ours.alg, plain.alg)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # of Python 3.12
def test_two_processes_end_in_the_same_policy(tmp_path: Path) -> None:
    meeting = str(tmp_path / "meeting")
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # a fork may wait for ever for threads of OpenMP
        other = pool.submit(two_processes.main, 1, meeting)
        ours, theirs = two_processes.main(0, meeting), other.result(timeout=120)
    assert ours == theirs
    assert "basic_reward>=" in ours


@pytest.mark.parametrize(("count", "steps", "learnt_from"), [(100, 100, 99), (4, 320, 4)])
def test_beside_a_memory_the_usual_minibatches_leave_hardly_an_environment_out(
    count: int, steps: int, learnt_from: int
) -> None:
    named = settings("lstm", num_steps_per_env=steps)
    named["algorithm"] = {"class_name": OURS, "prior": two_processes.Push(), "omega": 0.3, "alpha": 0.2}
    ours = OnPolicyRunner(Drift(count), named, None, "cpu")
    minibatches = collected(ours).recurrent_mini_batch_generator(ours.alg.num_mini_batches, 1)
    assert sum(batch.actions.shape[1] for batch in minibatches) == learnt_from


def test_an_update_ends_where_the_actor_has_moved_too_far() -> None:
    """It is then the update of so many epochs as it took, and tells their losses."""
    named = residual(small_policy(), num_mini_batches=1, num_learning_epochs=5)
    del named["schedule"]

    def updated(**more: Any) -> tuple[Any, dict[str, float]]:
        ours = runner(algorithm=named | more)
        collected(ours)
        torch.manual_seed(3)
        return ours.alg, ours.alg.update()

    ended, losses = updated(learning_rate=0.1)
    whole, wanted = updated(learning_rate=0.1, schedule="fixed", num_learning_epochs=2)
    assert same(networks(ended), networks(whole))
    assert losses == pytest.approx(wanted)
    near, _ = updated(learning_rate=1e-5)
    assert near.optimizer.state_dict()["state"][0]["step"] == near.num_learning_epochs
    tight, _ = updated(learning_rate=1e-4, desired_kl=1e-9)
    assert tight.optimizer.state_dict()["state"][0]["step"] == 2
    tight.method.iteration_metrics()
    with tight.method.policy_update([], tight.learning_rate, tight._set_learning_rate):
        assert tight.learning_rate == pytest.approx(1e-4 / 1.5)


def test_moving_statistics_of_observations_do_not_count_as_the_kl_of_an_update() -> None:
    named = residual(small_policy(), copy_prior=False, learning_rate=1e-12)
    del named["schedule"]
    ours = runner(algorithm=named)
    assert ours.alg.actor.obs_normalization
    collected(ours)
    ours.alg.update()
    kl, states = ours.alg.method.update_kl_sums
    assert states == 6 * 8
    assert kl / states < 1e-6


def test_a_resumed_run_has_its_learning_rate_with_every_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before 5.4.2 rsl_rl's own `load` left the algorithm's learning rate as the settings have it."""

    def load(algorithm: Any, *what: Any) -> Any:
        of_settings = algorithm.learning_rate
        found = new_load(algorithm, *what)
        algorithm.learning_rate = of_settings
        return found

    named = residual(small_policy())
    first, second = runner(algorithm=named), runner(algorithm=named)
    first.alg._set_learning_rate(0.0123)
    first.save(str(tmp_path / "model.pt"))
    new_load = PPO.load
    monkeypatch.setattr(PPO, "load", load)
    second.load(str(tmp_path / "model.pt"))
    assert second.alg.learning_rate == 0.0123


def test_whatever_has_log_prob_is_a_prior() -> None:
    class Flat:
        def log_prob(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
            assert observations.shape == (len(actions), SIZE)
            return -actions.square().sum(-1)

    ours = runner(algorithm=residual(Flat(), omega=1.0, alpha=0.0))
    st = collected(ours)
    free = st.dones.squeeze(-1) == 0
    expected = torch.stack(ours.env.paid) - st.actions.square().sum(-1)
    torch.testing.assert_close(st.rewards.squeeze(-1)[free], expected[free], rtol=0, atol=1e-6)


# The add-on from extras -----------------------------------------------------------------------------------------------
def test_the_add_on_may_come_from_extras_and_then_the_basic_reward_is_not_read() -> None:
    ours = runner(algorithm={"class_name": OURS, "omega": 0, "alpha": 0, "addon": "addon"})
    step = ours.env.step

    def without_basic(actions: torch.Tensor) -> Any:
        observations, rewards, dones, extras = step(actions)
        return observations, rewards * math.nan, dones, extras | {"time_outs": torch.zeros(8)}

    ours.env.step = without_basic
    st = collected(ours)
    torch.testing.assert_close(st.rewards.squeeze(-1), -st.actions.square().sum(-1), rtol=0, atol=1e-6)


def test_a_wish_of_a_file_pays_what_the_actor_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("def mine(before, actions, after, info): return (after - before).sum(1)")
    monkeypatch.chdir(tmp_path)
    priced = {"class_name": OURS, "omega": 0, "alpha": 0, "states": 0, "addon": "mine.py:mine=2"}
    ours = runner(algorithm=priced | {"prior": str(checkpoint(tmp_path))})
    st = collected(ours)
    states = torch.cat([st.observations["policy"], ours.env.get_observations()["policy"][None]])
    wanted = torch.where(st.dones.squeeze(-1) > 0, 0.0, 2.0 * states.diff(dim=0).sum(-1))
    torch.testing.assert_close(ours.alg.method.rollout_rewards.reward.total, wanted, rtol=0, atol=1e-5)
    with torch.inference_mode():
        told = ours.alg.envs.reset()
        step = ours.alg.envs.step(torch.zeros(8, 2))
    assert step.basic is not None
    moved = 2.0 * (step.observations["policy"] - told[0]["policy"]).sum(-1)
    torch.testing.assert_close(step.addon, torch.where(step.ended, 0.0, moved), rtol=0, atol=1e-5)


def test_a_wish_with_a_past_knows_where_episodes_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It pays the number of steps of the episode that are over, in the rollout and in the steps of a measurement."""
    (tmp_path / "mine.py").write_text("""
class Age:
    age = 0

    def __call__(self, before, actions, after, info, began):
        self.age = self.age * ~began + 1
        return 0.0 * actions[:, 0] + self.age
""")
    monkeypatch.chdir(tmp_path)
    ours = runner(algorithm=residual(small_policy(), states=0, addon="mine.py:Age"), env=Drift())
    expected = torch.zeros(8)
    for _ in range(3):
        st = collected(ours)
        for paid, ended in zip(ours.alg.method.rollout_rewards.reward.task, st.dones.squeeze(-1), strict=True):
            expected = expected + 1
            torch.testing.assert_close(paid.float(), expected)
            expected = expected * (ended == 0)
        st.clear()
    with torch.inference_mode():
        ours.alg.envs.reset()  # these environments cannot be reset
        step = ours.alg.envs.step(torch.zeros(8, 2))
    torch.testing.assert_close(step.addon, expected + 1)


@pytest.mark.parametrize(("omega", "env", "sent"), [
    (0.3, {}, lambda actions: actions),
    ("0.1..1", {}, lambda actions: actions),
    (0.3, {"clip_actions": 0.2}, lambda actions: actions.clamp(-0.2, 0.2)),
    (0.3, {"squashes": True}, torch.tanh),
])  # fmt: skip
def test_a_wish_is_paid_for_actions_as_they_were_sent_in_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, omega: Any, env: dict[str, Any], sent: Any
) -> None:
    """Also in the one that ends an episode, where the next observation is told by nobody."""
    (tmp_path / "mine.py").write_text("def mine(before, actions, after, info): return -(actions**2).sum(1)")
    monkeypatch.chdir(tmp_path)
    squashes = env.pop("squashes", False)
    made = Drift(**env)
    made.squashes = squashes
    prior = small_policy(**({"family": "squashed"} if squashes else {}))
    how = residual(prior, omega, states=0, addon="mine.py:mine")
    ours = runner(algorithm=how, env=made, actor=POLICY_ACTOR)
    for _ in range(2):
        st = collected(ours)
        st.clear()
    assert st.dones.any()
    wanted = -sent(st.actions).square().sum(-1)
    torch.testing.assert_close(ours.alg.method.rollout_rewards.reward.task.float(), wanted, rtol=0, atol=1e-5)
