"""Stable-Baselines3 with our algorithm: nothing but the rewards in the buffer is changed."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from sb3_models import Drift, envs, kl_of, model, residual, rollout, trained
from small import same, small_policy
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from repolicy import save_policy
from repolicy.errors import FileError, UsageError
from repolicy.hosts.sb3 import ResidualPPO, Unclipped, to_repolicy
from repolicy.objective import full, reformulated
from repolicy.objective import residual as ours
from repolicy.policies import ActionSpace
from repolicy.policies.modulated import ConditionedPolicy
from repolicy.ranges import Dial, Range
from repolicy.rql import WithAddon
from repolicy.rql.wrapping import TaskReward

pytestmark = pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")


def weights(of: Any) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in of.policy.state_dict().values()]


# Equal to the host ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("acts", ["numbers", "choice", "choices"])
def test_without_weights_it_is_their_ppo_to_the_bit(acts: str) -> None:
    found = []
    for algorithm, options in ((PPO, {}), (ResidualPPO, {"omega": 0.0, "alpha": 0.0})):
        each = model(algorithm, DummyVecEnv([lambda: Drift(acts=acts)] * 4), **options)
        found.append(weights(each.learn(4 * 32)))
    assert same(*found)


def test_so_it_is_with_gsde_beside_a_prior_whose_noise_is_its_own() -> None:
    prior, found = trained(use_sde=True), []
    for algorithm, more in ((PPO, {}), (ResidualPPO, {"omega": 0, "alpha": 0, "prior": prior, "copy_prior": False})):
        found.append(weights(model(algorithm, use_sde=True, **more).learn(4 * 32)))
    assert same(*found)


@pytest.mark.parametrize(
    ("sees", "acts", "policy"),
    [
        *(("numbers", acts, "MlpPolicy") for acts in ("numbers", "choice", "choices", "switches")),
        ("images", "numbers", "CnnPolicy"),
        ("both", "choice", "MultiInputPolicy"),
    ],
)
def test_the_buffer_holds_the_reformulated_reward(sees: str, acts: str, policy: str) -> None:
    env = DummyVecEnv([lambda: Drift(sees, acts)] * 4)
    prior = trained(env, policy)
    ours = residual(env=env, policy=policy, prior=prior)
    before, after = rollout(ours)
    buffer = ours.rollout_buffer
    log_prior = np.empty_like(before)
    for t in range(8):
        part = buffer.observations
        seen = {key: value[t] for key, value in part.items()} if isinstance(part, dict) else part[t]
        tensors, _ = prior.policy.obs_to_tensor(seen)
        actions = torch.as_tensor(buffer.actions[t]).float()
        with torch.no_grad():
            _, found, _ = prior.policy.evaluate_actions(tensors, actions.flatten() if acts == "choice" else actions)
        log_prior[t] = found.numpy()
    expected = reformulated(ours.steering.objective, before, log_prior, buffer.log_probs)
    np.testing.assert_allclose(after, expected.total, rtol=0, atol=2e-6)
    found = ours.logger.name_to_value
    assert found["residual/prior"] == pytest.approx(expected.prior.mean(), abs=1e-5)
    assert found["residual/entropy"] == pytest.approx(expected.entropy.mean(), abs=1e-5)
    assert found["residual/prior_kl"] == pytest.approx((buffer.log_probs - log_prior).mean(), abs=1e-5)


def test_advantages_are_of_the_changed_rewards() -> None:
    ours = residual(prior=trained(), gamma=0.0, gae_lambda=0.0)
    _, after = rollout(ours)
    np.testing.assert_allclose(ours.rollout_buffer.advantages, after - ours.rollout_buffer.values, atol=1e-6)


def test_what_is_told_of_the_task_is_what_was_paid_also_at_a_time_limit() -> None:
    """Stable-Baselines3 adds there what its critic expects, and goes on to learn of that."""

    class Paying(Drift):
        def step(self, action: Any) -> Any:
            observation, _, ended, cut, info = super().step(action)
            return observation, 1.0, ended, cut, info

    ours = residual(env=DummyVecEnv([Paying] * 4), prior=trained(), n_steps=16)
    for _ in range(2):
        ours.learn(64)  # a new critic expects nothing
        before, after = rollout(ours)
        assert (before != 1.0).any(), "a time limit"
        assert ours.logger.name_to_value["residual/task"] == 1.0
        paid = ours.method.rollout_rewards.reward
        np.testing.assert_allclose(after, before + paid.prior.numpy() + paid.entropy.numpy(), rtol=0, atol=1e-6)


def test_noise_that_depends_on_the_state_is_theirs_and_the_priors() -> None:
    ours = residual(prior=trained(use_sde=True), use_sde=True)
    rollout(ours)
    assert kl_of(ours) == pytest.approx(0.0, abs=1e-5)
    ours.learn(32)
    rollout(ours)
    assert kl_of(ours) != pytest.approx(0.0, abs=1e-5)


def test_sampled_steps_of_such_a_prior_have_noise_of_their_own() -> None:
    prior = residual(prior=trained(use_sde=True), use_sde=True).prior
    with torch.no_grad():
        observations = torch.ones(4000, 3)
        drawn = torch.stack([prior.act(observations, sample=True)[0] for _ in range(2)])
        spread = prior.distribution(observations[:1]).distribution.stddev
    torch.testing.assert_close(drawn.std(1), spread.expand(2, -1), rtol=0.05, atol=0.0)
    assert abs(torch.corrcoef(drawn[..., 0])[0, 1]) < 0.05


def test_of_such_a_prior_s_file_it_is_said_what_begins_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(use_sde=True).save(tmp_path / "gsde.zip")
    residual(prior=tmp_path / "gsde.zip")
    assert "gsde.zip has a std for each state and the actor one for all" in (said := capsys.readouterr().out)
    assert "with prior=PPO.load(FILE) and use_sde=True it begins as the prior" in said
    with pytest.raises(UsageError, match=r"the model has gSDE: its prior is prior=PPO.load\(FILE\)"):
        residual(prior=tmp_path / "gsde.zip", use_sde=True)
    residual(prior=small_policy())
    assert "std" not in capsys.readouterr().out


def test_a_verdict_needs_an_environment(tmp_path: Path) -> None:
    residual(prior=small_policy()).save(tmp_path / "model.zip")
    model = ResidualPPO.load(tmp_path / "model.zip")
    for ask in (model.verdict, lambda: model.learn(32)):
        with pytest.raises(UsageError, match="the model has no environment: load it with env=, or set_env"):
            ask()


@pytest.mark.usefixtures("_few_episodes")
def test_a_verdict_of_switches_in_the_warmup_says_what_the_actor_waits_for() -> None:
    env, waits = DummyVecEnv([lambda: Drift(acts="switches")] * 4), "the actor has only waited for the critic so far"
    ours = residual(env=env, prior=trained(env), critic_warmup=2).learn(64)
    assert waits in ours.verdict(), "the warm-up ended with the last iteration"
    assert waits not in ours.learn(32).verdict()


@pytest.mark.usefixtures("_few_episodes")
def test_a_model_goes_on_after_a_verdict_between_two_rollouts() -> None:
    class Verdicts(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            self.model.verdict()

    ours = residual(prior=trained()).learn(64, callback=Verdicts())
    assert ours.num_timesteps == 64
    assert ours.rollout_buffer.episode_starts[0].all()


def test_what_is_named_beside_a_model_s_file_is_taken_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    for by, amount in (("kl_budget", 1.0), ("keep", 0.9)):
        residual(prior=trained(), alpha=0.3, **{by: amount}).save(path)
        with pytest.raises(UsageError, match=f"the model's {by} moves its weights: .* another weight, name {by}, too"):
            ResidualPPO.load(path, envs(), omega=9.0)
        assert ResidualPPO.load(path, envs(), omega=9.0, **{by: None}).steering.objective.omega == 9.0
        assert getattr(ResidualPPO.load(path, envs()).steering, by) == amount
        assert getattr(ResidualPPO.load(path, envs(), **{by: None}).steering, by) is None
    assert ResidualPPO.load(path, envs(), alpha=0.2).steering.objective.alpha == 0.2
    with pytest.raises(UsageError, match="ResidualPPO has no option omgea; did you mean omega"):
        ResidualPPO.load(path, envs(), omgea=9.0)


# Start, warm-up, budget, files ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["theirs", "ours"])
def test_the_actor_begins_as_its_prior_and_waits_for_the_critic(kind: str) -> None:
    prior = trained() if kind == "theirs" else small_policy()
    ours = residual(prior=prior, critic_warmup=2)
    observations, actions = torch.randn(20, 3), torch.randn(20, 2)

    @torch.no_grad()
    def log_prob(of: Any) -> torch.Tensor:
        return of.policy.get_distribution(observations).log_prob(actions)

    start = log_prob(ours)
    expected = prior.log_prob(observations, actions) if kind == "ours" else log_prob(prior)
    torch.testing.assert_close(start, expected, rtol=1e-5, atol=1e-5)
    critic = ours.policy.value_net.weight.clone()
    for iterations, still in ((2, True), (1, False)):
        ours.learn(32 * iterations, reset_num_timesteps=False)
        assert torch.equal(log_prob(ours), start) == still
    assert not torch.equal(ours.policy.value_net.weight, critic)
    if kind == "theirs":
        assert not torch.equal(critic, prior.policy.value_net.weight), "the critic starts fresh"


def test_a_saved_model_keeps_a_prior_of_theirs_in_a_handle_too(tmp_path: Path) -> None:
    ours = residual(prior=trained()).learn(32)
    for target in (tmp_path / "model", io.BytesIO()):
        ours.save(target)
        if isinstance(target, io.BytesIO):
            target.seek(0)
        again = ResidualPPO.load(target, envs())
        assert same(weights(ours), weights(again))
        assert same([*ours.prior.state_dict().values()], [*again.prior.state_dict().values()])


def assert_same_values(one: PPO, other: PPO) -> None:
    seen = torch.randn(50, *one.observation_space.shape)
    with torch.no_grad():
        found, expected = (each.policy.predict_values(seen) for each in (one, other))
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_their_own_ppo_loads_a_model_of_ours_and_ours_one_of_its(tmp_path: Path) -> None:
    """A critic of ours learns in the unit of its returns; in files it predicts rewards, as any other."""
    prior, path = trained(), tmp_path / "model.zip"
    ours = residual(prior=prior).learn(256)
    before = weights(ours)
    ours.save(path)
    assert same(weights(ours), before)
    plain, again = PPO.load(path, envs()), ResidualPPO.load(path, envs())
    assert same(weights(again), before)
    for each in (plain, again, ResidualPPO.load(path, envs(), omega=0.0, alpha=0.0)):
        assert_same_values(each, ours)
    plain.learn(128).save(path)  # beside the unit of before
    ours = ResidualPPO.load(path, envs(), prior=prior)
    assert_same_values(ours, plain)
    rollout(ours)  # whose returns set a unit
    assert_same_values(ours, plain)
    ours.learn(64).set_parameters(path)
    assert_same_values(ours, plain)


def test_a_saved_model_holds_no_pickle_of_ours(tmp_path: Path) -> None:
    residual(prior=small_policy(), policy_kwargs=None).save(tmp_path / "model.zip")
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        assert "prior.safetensors" in archive.namelist()
        data = json.loads(archive.read("data"))
    ours = {"objective", "omega", "alpha", "critic_warmup", "kl_budget", "log_prior_budget", "position"}
    assert ours <= data.keys()
    assert not any(isinstance(data[name], dict) and ":serialized:" in data[name] for name in ours)
    assert not {"prior", "method"} & data.keys()


def test_a_model_beside_another_of_theirs_is_refused_with_both_names(tmp_path: Path) -> None:
    env = envs()
    save_policy(tmp_path / "a.safetensors", small_policy(), {})
    residual(env=env, prior=tmp_path / "a.safetensors").save(tmp_path / "model.zip")
    again = ResidualPPO.load(tmp_path / "model.zip", env, prior=tmp_path / "a.safetensors")
    assert same(weights(again), weights(ResidualPPO.load(tmp_path / "model.zip", env)))
    of_theirs = trained(env)
    with pytest.raises(UsageError, match="prior was .*a.safetensors, and a PPO is another"):
        ResidualPPO.load(tmp_path / "model.zip", env, prior=of_theirs)
    residual(env=env, prior=of_theirs).save(tmp_path / "model.zip")
    ResidualPPO.load(tmp_path / "model.zip", env, prior=of_theirs)
    with pytest.raises(UsageError, match="prior was a PPO, and a Policy is another"):
        ResidualPPO.load(tmp_path / "model.zip", env, prior=small_policy())


# Bad input ------------------------------------------------------------------------------------------------------------
ONE = {"omega": None, "alpha": None}
CHOOSES = small_policy(family="categorical")
DIALED = ConditionedPolicy.from_prior(small_policy(), [Dial("omega", 0.1, 1.0)])
WRONG = [
    ({"omega": 0.0, "prior": None}, "alpha is 0.2 and omega is 0, and Stable-Baselines3 clips actions"),
    ({"objective": ours(Range(0.1, 1.0), 0.1, 0.0)} | ONE, "omega is a range, and this host takes one number"),
    ({"objective": ours(0.1, Range(0.1, 1.0))} | ONE, "alpha is a range, and this host takes one number"),
    *(
        ({"prior": DIALED, "copy_prior": copied}, "is one for every omega from 0.1 to 1, so")
        for copied in (True, False)
    ),
    ({"prior": CHOOSES, "copy_prior": False}, "acts with choices of 3, but the environment takes 2 numbers"),
    ({"policy_kwargs": {}}, r"hidden layers \[8, 8\], and the model has \[64, 64\]"),
]


@pytest.mark.parametrize(("change", "sentence"), WRONG)
def test_wrong_settings_are_one_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        residual(**{"prior": small_policy()} | change)


def test_rewards_and_observations_on_a_moving_scale_are_refused() -> None:
    moves = r"VecNormalize\(norm_reward=True\) or .*, and the scale of what"
    for env, said in (
        (VecNormalize(envs()), moves),
        (gymnasium.wrappers.NormalizeReward(Drift()), "wrapped in NormalizeReward"),
        (VecNormalize(envs(), norm_reward=False), "statistics of observations move, .* set training = False"),
        (gymnasium.wrappers.NormalizeObservation(Drift()), "statistics of observations move"),
        (VecNormalize(envs(), norm_reward=False, training=False), "VecNormalize changes what the actor sees"),
    ):
        with pytest.raises(UsageError, match=said):
            residual(env=env, prior=small_policy())
    model(env=VecNormalize(envs()), omega=0.0, alpha=0.0)  # their own PPO does not mind
    with pytest.raises(UsageError, match=moves):
        residual(prior=small_policy()).set_env(VecNormalize(envs()))


@pytest.mark.parametrize("own", [True, False])
def test_choices_that_do_not_begin_at_0_are_refused(own: bool) -> None:
    """Stable-Baselines3's PPO sends 0 to 2 where the environment takes 1 to 3."""
    env = DummyVecEnv([lambda: Drift(acts="from 1")] * 4)
    prior = small_policy(actions=ActionSpace("discrete", (3,), (1.0,)), family="categorical") if own else trained(env)
    with pytest.raises(UsageError, match="choices begin at 1, and Stable-Baselines3 sends them counted from 0"):
        residual(env=env, prior=prior)
    with pytest.raises(UsageError, match="choices begin at 1"):
        to_repolicy(trained(env))


def test_statistics_that_begin_to_move_are_noticed() -> None:
    still = VecNormalize(envs(), norm_reward=False, training=False)
    ours = residual(env=still, prior=small_policy(), copy_prior=False).learn(32)
    before = weights(ours)
    still.training = True
    with pytest.raises(UsageError, match="statistics of observations move"):
        ours.learn(32)
    assert same(before, weights(ours))


@pytest.mark.usefixtures("_few_episodes")
def test_in_a_verdict_the_policy_sees_what_it_learnt_from_and_its_prior_raw_numbers() -> None:
    still = VecNormalize(envs(), norm_reward=False, training=False)
    still.obs_rms.mean[:], still.obs_rms.var[:] = 15.0, 4.0
    ours = residual(env=still, prior=small_policy(), copy_prior=False)
    seen = {"policy": list[torch.Tensor](), "prior": list[torch.Tensor]()}
    for name, module in (("policy", ours.policy.features_extractor), ("prior", ours.prior.prior.normalizer)):
        module.register_forward_pre_hook(lambda _, given, name=name: seen[name].append(given[0]))
    ours.verdict()
    shown, raw = (torch.cat(each) for each in seen.values())
    assert raw.abs().max() < 9.0
    assert shown.max() < -3.0, "less than 9, and so more than three stds below the mean"


def test_a_prior_that_takes_rows_beside_a_dict_is_told_from_one_that_takes_the_dict(tmp_path: Path) -> None:
    env = DummyVecEnv([lambda: Drift("both")])
    with pytest.raises(UsageError, match=r"of kind Dict, and the prior takes rows of numbers.*prior=PPO.load\(FILE\)$"):
        residual(env=env, policy="MultiInputPolicy", prior=small_policy())
    prior = PPO("MultiInputPolicy", env, device="cpu")
    residual(env=env, policy="MultiInputPolicy", prior=prior).save(tmp_path / "both.zip")
    with pytest.raises(FileError, match=r"its observations are images, .* is a prior, too: prior=PPO.load\(FILE\)$"):
        residual(env=env, policy="MultiInputPolicy", prior=tmp_path / "both.zip")


def test_beside_a_model_that_scales_its_actions_a_prior_of_ours_is_refused() -> None:
    how: dict[str, Any] = {"use_sde": True, "policy_kwargs": {"squash_output": True}}
    with pytest.raises(UsageError, match="the model scales its actions itself, and the prior scores them as the env"):
        residual(prior=small_policy(), copy_prior=False, **how)
    residual(prior=trained(**how), **how)


def test_a_model_of_other_sizes_is_refused_with_both() -> None:
    with pytest.raises(UsageError, match=r"size mismatch for action_net.weight: .*\[2, 5\]\) from .*\[2, 64\]"):
        residual(prior=trained(policy_kwargs={"net_arch": [5]}), policy_kwargs={})


def quiet(before: np.ndarray, actions: np.ndarray, after: np.ndarray, info: Any) -> np.ndarray:
    return -np.square(actions).sum(-1)


def test_an_add_on_that_nothing_pays_is_refused() -> None:
    def with_addon() -> WithAddon:
        return WithAddon(Unclipped(Drift()), quiet)

    for wrong in (with_addon, lambda: TaskReward(with_addon(), full(0.1))):
        with pytest.raises(UsageError, match="pays its own reward, .*: wrap WithAddon in .*TaskReward, without an obj"):
            residual(env=DummyVecEnv([wrong] * 4), prior=small_policy())
    env = DummyVecEnv([lambda: TaskReward(with_addon())] * 4)
    residual(env=env, prior=small_policy())
    env.reset()
    _, rewards, _, infos = env.step(np.full((4, 2), 2.0, np.float32))
    assert rewards.tolist() == [-8.0] * 4
    assert all(info["basic_reward"] != -8.0 for info in infos)


@pytest.mark.parametrize("named", [{"learning_rate": 1e-5}, {"custom_objects": {"learning_rate": lambda _: 1e-5}}])
def test_a_learning_rate_that_is_named_beside_a_file_stays(tmp_path: Path, named: dict[str, Any]) -> None:
    made = model(prior=trained(), omega=0.3, alpha=0.2, critic_warmup=0).learn(64)
    assert made.lr_schedule(1.0) != pytest.approx(1e-5)
    made.save(tmp_path / "model.zip")
    again = ResidualPPO.load(tmp_path / "model.zip", envs(), **named).learn(64, reset_num_timesteps=False)
    assert again.policy.optimizer.param_groups[0]["lr"] == 1e-5
