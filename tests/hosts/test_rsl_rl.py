"""rsl_rl's runner with our algorithm: nothing but the rewards is changed."""

import copy
import math
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import small
import torch
from runners import Algorithm, runner

pytest.importorskip("rsl_rl")
from rsl_rl.runners import OnPolicyRunner
from runner_envs import NETWORKS, OURS, SIZE, Drift, settings

from repolicy import save_policy
from repolicy.errors import FileError, NumericError, UsageError
from repolicy.hosts import kept_prior as common
from repolicy.hosts.rsl_rl import ResidualPPO
from repolicy.learning.multipliers import FARTHEST, off_budget, steered
from repolicy.objective import Objective, reformulated


def residual(prior: Any = None, omega: float = 0.3, alpha: float = 0.2, **more: Any) -> Algorithm:
    weights = {"omega": omega, "alpha": alpha, "critic_warmup": 0, "schedule": "adaptive"}
    return {"class_name": OURS, "prior": prior} | weights | more


def checkpoint(folder: Path, network: str = "mlp", seed: int = 1) -> Path:
    """A checkpoint of rsl_rl's own PPO after an iteration."""
    trained = runner(network, seed=seed)
    trained.learn(1)
    trained.save(str(folder / f"{network}-{seed}.pt"))
    return folder / f"{network}-{seed}.pt"


def tensors(algorithm: Any) -> list[torch.Tensor]:
    return [*algorithm.actor.state_dict().values(), *algorithm.critic.state_dict().values()]


def same(first: Any, second: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(tensors(first), tensors(second), strict=True))


small_policy = partial(small.small_policy, hidden=(16, 16))


def collected(started: OnPolicyRunner) -> Any:
    """The storage after one rollout, before any update."""
    with torch.inference_mode():
        observations = started.env.get_observations()
        for _ in range(started.cfg["num_steps_per_env"]):
            observations, rewards, dones, extras = started.env.step(started.alg.act(observations))
            started.alg.process_env_step(observations, rewards, dones, extras)
        started.alg.compute_returns(observations)
    return started.alg.storage


# Equal to the host ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", NETWORKS)
def test_without_weights_it_is_rsl_rls_ppo_to_the_bit(network: str) -> None:
    theirs, ours = runner(network), runner(network, residual(omega=0.0, alpha=0.0))
    for each in (theirs, ours):
        torch.manual_seed(5)
        each.learn(20)
    assert isinstance(ours.alg, ResidualPPO)
    assert same(theirs.alg, ours.alg)


@pytest.mark.parametrize(
    ("more", "bonus"), [({}, 0.0), ({"entropy_coef": 0.02}, 0.02), ({"omega": 0.0, "alpha": 0.0}, 0.01)]
)
def test_beside_a_weight_nobody_is_paid_twice_for_the_entropy(more: Algorithm, bonus: float) -> None:
    assert runner(algorithm=residual(small_policy()) | more).alg.entropy_coef == bonus


def test_a_weight_makes_a_difference() -> None:
    theirs, ours = runner(), runner(algorithm=residual(omega=0.0, alpha=0.1))
    for each in (theirs, ours):
        torch.manual_seed(5)
        each.learn(2)
    assert not same(theirs.alg, ours.alg)


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
    torch.testing.assert_close(
        bootstrapped[st.dones.squeeze(-1) == 0], torch.zeros(int((st.dones == 0).sum())), rtol=0, atol=1e-6
    )
    ends = st.dones.squeeze(-1) == 1
    values = ours.alg.gamma * st.values.squeeze(-1)  # at a time limit, rsl_rl adds this and nothing else
    both = torch.minimum(bootstrapped.abs(), (bootstrapped - values).abs())
    assert ends.any()
    assert float(both[ends].max()) < 1e-6


def test_the_prior_has_its_own_normalizer(tmp_path: Path) -> None:
    path = checkpoint(tmp_path)
    ours = runner(algorithm=residual(str(path), copy_prior=False), seed=3)
    before = {name: tensor.clone() for name, tensor in ours.alg.prior.state_dict().items()}
    ours.learn(3)
    assert all(torch.equal(tensor, before[name]) for name, tensor in ours.alg.prior.state_dict().items())
    assert not torch.equal(ours.alg.actor.obs_normalizer._mean, ours.alg.prior.model.obs_normalizer._mean)


@pytest.mark.parametrize("network", ["mlp", "gru"])
def test_the_first_ratio_is_one(tmp_path: Path, network: str) -> None:
    ours = runner(network, residual(str(checkpoint(tmp_path, network))))
    ours.learn(2)
    st = collected(ours)
    recurrent = ours.alg.actor.is_recurrent
    batches = st.recurrent_mini_batch_generator if recurrent else st.mini_batch_generator
    batch = next(iter(batches(1, 1)))
    ours.alg.actor(batch.observations, masks=batch.masks, hidden_state=batch.hidden_states[0], stochastic_output=True)
    ratio = (ours.alg.actor.get_output_log_prob(batch.actions) - batch.old_actions_log_prob.squeeze(-1)).exp()
    torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=1e-5)


def test_the_runners_own_log_stays_the_tasks(tmp_path: Path) -> None:
    found = []
    for algorithm in ({}, residual(omega=0.0, alpha=0.5)):
        torch.manual_seed(0)
        each = OnPolicyRunner(Drift(), settings(algorithm=algorithm), str(tmp_path / OURS[:3]), "cpu")
        torch.manual_seed(1)
        each.learn(1)  # both act alike until the first update
        found.append(list(each.logger.rewbuffer))
    assert found[0]
    assert found[0] == found[1]


def test_the_parts_are_logged_apart(tmp_path: Path) -> None:
    ours = runner(algorithm=residual(str(checkpoint(tmp_path))))
    st = collected(ours)
    log_policy, paid = st.actions_log_prob.mean(), torch.stack(ours.env.paid).mean()
    losses = ours.alg.update()
    assert losses["reward_task"] == pytest.approx(float(paid), abs=1e-5)
    assert losses["reward_entropy"] == pytest.approx(-0.2 * float(log_policy), abs=1e-5)
    assert losses["prior_kl"] == pytest.approx(float(log_policy) - losses["reward_prior"] / 0.3, abs=1e-4)


# Start, warm-up, budget, files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", NETWORKS)
def test_the_actor_begins_as_its_prior_and_waits_for_the_critic(tmp_path: Path, network: str) -> None:
    ours = runner(network, residual(str(checkpoint(tmp_path, network)), critic_warmup=2))
    start, critic = [[t.clone() for t in module.state_dict().values()] for module in (ours.alg.actor, ours.alg.critic)]
    prior = ours.alg.prior.model.state_dict().values()
    assert all(torch.equal(a, b) for a, b in zip(start, prior, strict=True))
    rate = ours.alg.learning_rate
    ours.alg.actor.get_kl_divergence = lambda old, new: torch.full(new[0].shape[:-1], 1e-9)  # of rounding alone
    ours.learn(2)
    assert all(torch.equal(a, b) for a, b in zip(start, ours.alg.actor.state_dict().values(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(critic, ours.alg.critic.state_dict().values(), strict=True))
    assert ours.alg.learning_rate == rate, "the KL of an actor that stands still would speed up its learning"
    ours.learn(1)
    assert ours.alg.learning_rate > rate
    assert not all(torch.equal(a, b) for a, b in zip(start, ours.alg.actor.state_dict().values(), strict=True))
    assert ours.alg.schedule == "adaptive"


def test_a_budget_turns_both_weights_by_a_mean_over_the_rollouts_steps(tmp_path: Path) -> None:
    ours = runner(algorithm=residual(str(checkpoint(tmp_path)), copy_prior=False, kl_budget=0.1))
    collected(ours)
    losses = ours.alg.update()
    off = off_budget(losses["prior_kl"], 0.1, -FARTHEST, 6 * 8)
    expected = steered(Objective("addon", 0.3, 0.2), -FARTHEST, off)
    assert losses["omega"] == 0.3
    assert ours.alg.steering.objective == expected


def test_a_checkpoint_keeps_the_prior_and_the_dial(tmp_path: Path) -> None:
    options = {"kl_budget": 0.5, "critic_warmup": 1}
    ours = runner(algorithm=residual(str(checkpoint(tmp_path, seed=1)), **options))
    ours.learn(3)
    ours.save(str(tmp_path / "ours.pt"))
    other = runner(algorithm=residual(str(checkpoint(tmp_path, seed=1)), **options), seed=9)
    other.load(str(tmp_path / "ours.pt"))
    assert same(ours.alg, other.alg)
    assert other.alg.steering == ours.alg.steering
    weights = ours.alg.prior.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in other.alg.prior.state_dict().items())
    plain = runner(seed=7)
    plain.load(str(tmp_path / "ours.pt"))  # rsl_rl's own PPO reads it as well
    assert same(ours.alg, plain.alg)


def test_a_checkpoint_of_another_prior_is_refused_with_both_names(tmp_path: Path) -> None:
    first, second = (checkpoint(tmp_path, seed=seed) for seed in (1, 2))
    ours = runner(algorithm=residual(str(first)))
    ours.save(str(tmp_path / "ours.pt"))
    for prior, name in ((str(second), "mlp-2.pt"), (small_policy(), "a Policy")):
        other = runner(algorithm=residual(prior))
        with pytest.raises(UsageError, match=f"made beside the prior .*mlp-1.pt, and .*{name} is another"):
            other.load(str(tmp_path / "ours.pt"))


def test_two_processes_end_in_the_same_policy() -> None:
    program = Path(__file__).parent / "two_processes.py"
    ranks = [
        subprocess.Popen([sys.executable, str(program), str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=120)[0].splitlines()[-1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert said[0] == said[1]
    assert "omega" in said[0]


# Policies of ours -----------------------------------------------------------------------------------------------------


def test_a_file_of_ours_is_a_prior(tmp_path: Path) -> None:
    policy = small_policy()
    save_policy(tmp_path / "prior.safetensors", policy, {})
    ours = runner(algorithm=residual(str(tmp_path / "prior.safetensors")))
    st = collected(ours)
    torch.testing.assert_close(
        st.actions_log_prob.squeeze(-1),
        policy.log_prob(st.observations["policy"], st.actions),
        rtol=1e-4,
        atol=1e-4,
    )
    ours.alg.update()
    assert torch.equal(ours.alg.actor.obs_normalizer._mean.flatten(), policy.normalizer.mean.float())


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


def test_both_rewards_add_up() -> None:
    both = {"class_name": OURS, "objective": {"task": "both"}, "addon": "addon"}
    ours = runner(algorithm=both)
    st = collected(ours)
    free = st.dones.squeeze(-1) == 0
    expected = torch.stack(ours.env.paid) - st.actions.square().sum(-1)
    torch.testing.assert_close(st.rewards.squeeze(-1)[free], expected[free], rtol=0, atol=1e-6)


# Bad input ------------------------------------------------------------------------------------------------------------

WRONG = [
    ({"omega": None, "prior": None}, "omega and alpha are measured by a prior, and there is none"),
    ({"objective": {"task": "addon"}}, "an objective was given, and omega, alpha or states too"),
    ({"prior": None}, "omega is 0.3, which weighs a prior's log-probability, and there is no prior"),
    ({"critic_warmup": 0.05}, "critic_warmup is 0.05; here it counts iterations"),
    ({"kl_budget": -1.0}, "kl_budget is -1.0; it must be a number of nats greater than 0"),
    ({"prior": "nowhere.pt"}, "there is no file nowhere.pt"),
    ({"prior": 3}, "a int cannot be a prior: it has no log_prob"),
    ({"objective": {"task": "both"}, "omega": None, "alpha": None}, "the task 'both' needs two rewards"),
    ({"objective": {"wish": 1}, "omega": None, "alpha": None}, "must have the fields task, omega, alpha, bonus"),
]


@pytest.mark.parametrize(("change", "sentence"), WRONG)
def test_wrong_settings_are_one_sentence(change: Algorithm, sentence: str) -> None:
    with pytest.raises((UsageError, FileError), match=sentence):
        runner(algorithm=residual(small_policy()) | change)


def test_a_prior_of_other_sizes_is_refused_with_both(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="takes observations of 4 numbers, but the environment gives 3"):
        runner(algorithm=residual(small_policy(observations=4)))
    with pytest.raises(UsageError, match="acts with 1 numbers, but the environment takes 2 numbers"):
        runner(algorithm=residual(small_policy(actions=1)))
    with pytest.raises(UsageError, match=r"hidden layers \[8\], and the actor has \[16, 16\]"):
        runner(algorithm=residual(small_policy(hidden=(8,))))
    path = checkpoint(tmp_path)
    with pytest.raises(UsageError, match=r"mlp.0.weight of \[16, 3\], and the actor of \[5, 3\]"):
        OnPolicyRunner(Drift(), settings(algorithm=residual(str(path)), hidden_dims=[5]), None, "cpu")


def test_a_recurrent_prior_needs_a_recurrent_actor(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is recurrent, and this runner's actor has no memory"):
        runner(algorithm=residual(str(checkpoint(tmp_path, "lstm"))))


def test_a_checkpoint_that_runs_code_is_refused(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"actor_state_dict": Trap()}, tmp_path / "trap.pt")
    torch.save({"actor_state_dict": {"mlp.0.weight": Trap()}}, tmp_path / "inside.pt")
    for name, said in (("trap", "no policy of a known layout"), ("inside", "mlp.0.weight is .* and no tensor")):
        with pytest.raises(FileError, match=said):
            runner(algorithm=residual(str(tmp_path / f"{name}.pt")))
        assert not (tmp_path / "ran").exists()


def test_a_damaged_checkpoint_is_no_prior(tmp_path: Path) -> None:
    whole = checkpoint(tmp_path).read_bytes()
    weight = torch.load(checkpoint(tmp_path), weights_only=True)["actor_state_dict"]["mlp.0.weight"].numpy().tobytes()
    damaged, place = bytearray(whole), whole.index(weight)
    damaged[place + 9] ^= 64
    contents = {bytes(damaged): "CRC", whole[:-100]: "no whole zip", b"": "model.pt", b"\0" * 100: "model.pt"}
    for content, said in contents.items():
        (tmp_path / "model.pt").write_bytes(content)
        with pytest.raises(FileError, match=said):
            runner(algorithm=residual(str(tmp_path / "model.pt")))
    loaded = torch.load(checkpoint(tmp_path), weights_only=True)
    loaded["actor_state_dict"]["mlp.0.bias"][0] = torch.nan
    torch.save(loaded, tmp_path / "nan.pt")
    with pytest.raises(FileError, match="mlp.0.bias has numbers that are not finite"):
        runner(algorithm=residual(str(tmp_path / "nan.pt")))


def test_clipped_actions_with_nothing_to_hold_the_std_are_refused() -> None:
    with pytest.raises(UsageError, match=r"clips actions to ±1 \(clip_actions\): the entropy is that of the unclipped"):
        runner(algorithm=residual(omega=0.0), clip_actions=1.0)
    with pytest.raises(UsageError, match=r"clips actions to ±0.5 to 2 \(clip_actions\)"):
        runner(algorithm=residual(omega=0.0), clip_actions=torch.tensor([1.0, 0.5, 2.0]))
    runner(algorithm=residual(small_policy()), clip_actions=1.0)  # a prior holds it


def test_a_missing_entry_of_extras_is_named() -> None:
    ours = runner(algorithm={"class_name": OURS, "omega": 0, "alpha": 0, "addon": "wish"})
    with pytest.raises(UsageError, match="extras have no 'wish', .* they have addon, log, time_outs"):
        collected(ours)


def test_a_reward_that_is_not_finite_is_not_learnt_from() -> None:
    class Broken:
        def log_prob(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
            return actions.sum(-1) * math.nan

    ours = runner(algorithm=residual(Broken()))
    before = [parameter.detach().clone() for parameter in ours.alg.actor.parameters()]
    collected(ours)
    with pytest.raises(NumericError, match="the prior's log-probability is not finite in this iteration"):
        ours.alg.update()
    assert all(torch.equal(a, b) for a, b in zip(before, ours.alg.actor.parameters(), strict=True))


@pytest.mark.parametrize("found", ["5.3.9", "6.0.0", "4.1"])
def test_an_unsupported_version_is_refused(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr(common, "version", lambda package: found)
    with pytest.raises(UsageError, match=f"rsl-rl-lib {found} is installed, .* works with rsl-rl-lib>=5.4,<6.0"):
        common.check_version("rsl-rl-lib", (5, 4), (6, 0), "rsl-rl")


def test_an_rsl_rl_that_lacks_what_is_imported_is_named_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 3.x there is no `GaussianDistribution`, so that the import fails."""
    import rsl_rl.modules

    monkeypatch.delattr(rsl_rl.modules, "GaussianDistribution")
    for name in ("rsl_rl", "rsl_rl_policies"):
        monkeypatch.delitem(sys.modules, f"repolicy.hosts.{name}")
    monkeypatch.setattr(common, "version", lambda package: "3.1.2")
    with pytest.raises(UsageError, match=r"rsl-rl-lib 3.1.2 is installed, and .* works with rsl-rl-lib>=5.4,<6.0"):
        __import__("repolicy.hosts.rsl_rl")


@pytest.mark.parametrize(
    ("module", "host", "extra"), [("rsl_rl", "rsl_rl", "rsl-rl"), ("sb3", "stable_baselines3", "sb3")]
)
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, module: str, host: str, extra: str) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == host or f".hosts.{module}" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, host, None)
    with pytest.raises(UsageError, match=rf"not installed: pip install 'repolicy\[{extra}\]'"):
        __import__(f"repolicy.hosts.{module}")
