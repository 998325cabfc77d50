"""What must hold in rsl_rl and in Stable-Baselines3 alike."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import runner_envs
import runners
import sb3_models
import torch
from both import PRIOR, InRslRl, InSb3, hosts
from small import Far, remembering, same, sine, small_policy
from tensordict import TensorDict

from repolicy import save_policy
from repolicy.errors import FileError, NumericError, UsageError
from repolicy.hosts import measuring
from repolicy.learning import ppo
from repolicy.learning.multipliers import MAX_VIOLATION, budget_violation, steered_objective
from repolicy.learning.ppo import STD_SPEED
from repolicy.objective import Objective
from repolicy.policies.density import fit_density

pytestmark = pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
UNNAMED = {"omega": None, "alpha": None}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"omega": None, "prior": None}, "omega and alpha are measured by a prior, and there is none"),
    ({"prior": None}, "omega is 0.3, which weighs a prior's log-probability, and there is no prior"),
    ({"critic_warmup": 0.05}, "critic_warmup is 0.05; here it counts iterations"),
    ({"omaga": 0.3}, "^ResidualPPO has no option omaga; did you mean .*omega"),
    ({"kl_budget": -1.0}, "kl_budget is -1.0; it must lie between 1e-09"),
    ({"kl_budget": 1.0, "omega": 0.0}, "a budget adapts omega, so omega must start above 0"),
    ({"prior": 3}, "this int cannot be a prior: it has no log_prob"),
    ({"prior": "nowhere.pt"}, "there is no file nowhere.pt"),
    ({"kl_budget": 1.0}, "a KL budget moves omega and alpha together, from one value above 0 on: name one number"),
    ({"objective": Objective("addon", 0.3, 0.2), "kl_budget": 1.0} | UNNAMED, "a KL budget moves omega and alpha"),
    ({"log_prior_budget": 1.0, "alpha": 0.0}, "a log-prior budget moves omega .* at a fixed alpha above 0"),
    ({"kl_budget": 2.0, "alpha": None}, "^kl_budget goes with omega auto, which begins at alpha, and no "),
    ({"objective": {"wish": 1}} | UNNAMED, "it must be a mapping with some of task, omega, alpha, states and bonus"),
    ({"objective": "kl"} | UNNAMED, "the objective is 'kl'; it must be a mapping"),
    ({"objective": Objective("addon", 0.1, 0.1, bonus=1.0)} | UNNAMED, "bonus is 1, and this host knows no"),
    ({"prior": small_policy(observations=4)}, "takes observations of 4 numbers, but the environment gives 3"),
]


@hosts
@pytest.mark.parametrize(("change", "sentence"), WRONG)
def test_wrong_settings_are_one_sentence(host: Any, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises((UsageError, FileError), match=sentence):
        host(**{"copy_prior": False} | change).learn(1)


@pytest.mark.parametrize(("host", "name"), [(InRslRl, "entropy_coef"), (InSb3, "ent_coef")])
def test_a_bonus_for_entropy_is_said(host: Any, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    host(omega=0.3, alpha=0.1)
    assert "pays for the entropy" not in capsys.readouterr().out
    host(omega=0.3, alpha=0.1, **{name: 0.02})
    assert f"{name} is 0.02, and alpha pays for the entropy already" in capsys.readouterr().out


def pushed(optimizer: torch.optim.Optimizer, log_std: torch.nn.Parameter) -> float:
    """How far a step moves the logarithm of a std, in learning rates. The first one of Adam goes by signs alone."""
    before = log_std.detach().clone()
    for group in optimizer.param_groups:
        for each in group["params"]:
            each.grad = torch.ones_like(each)
    optimizer.step()
    return float((before - log_std.detach()).mean() / optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize(("omega", "least", "speed"), [(0.3, 32, STD_SPEED), (0.3, 2048, 1.0), (0.0, 32, 1.0)])
def test_beside_a_weight_the_logarithm_of_a_std_learns_as_fast_as_in_the_engine(
    monkeypatch: pytest.MonkeyPatch, omega: float, least: int, speed: float
) -> None:
    monkeypatch.setattr(ppo, "STD_SPEED_MIN_SAMPLES", least)
    weights = {"omega": omega, "alpha": omega, "states": 0.0}
    model = InSb3(**weights).started
    assert pushed(model.policy.optimizer, model.policy.log_std) == pytest.approx(speed, rel=1e-3)
    how = runners.residual(PRIOR, copy_prior=False, **weights)
    algorithm = runners.runner(algorithm=how, distribution={"std_type": "log"}).alg
    log_std = algorithm.get_policy().distribution.log_std_param
    assert pushed(algorithm.optimizer, log_std) == pytest.approx(speed, rel=1e-3)
    gsde = InSb3(sb3_models.trained(use_sde=True), use_sde=True, **weights).started
    assert gsde.policy.log_std.dim() == 2
    assert pushed(gsde.policy.optimizer, gsde.policy.log_std) == pytest.approx(1.0, rel=1e-3)
    features = small_policy(hidden=(16, 16), family="features_gaussian")
    algorithm = runners.runner(algorithm=runners.residual(features, **weights), actor=runners.POLICY_ACTOR).alg
    log_std = algorithm.get_policy().distribution.log_std
    assert log_std.dim() == 2
    assert pushed(algorithm.optimizer, log_std) == pytest.approx(1.0, rel=1e-3)


@hosts
def test_a_budget_turns_both_weights_by_a_mean_over_the_rollouts_steps(host: Any) -> None:
    started = host(copy_prior=False, alpha=0.3, kl_budget=0.1)
    started.learn(1)
    spent, steps = started.method.spending
    expected = steered_objective(
        Objective("addon", 0.3, 0.3), -MAX_VIOLATION, budget_violation(spent["prior_kl"], 0.1, -MAX_VIOLATION, steps)
    )
    assert started.method.curves["omega"] == [0.3]
    assert started.method.steering.objective == expected


@hosts
def test_what_is_saved_keeps_the_prior_and_the_place(host: Any, tmp_path: Path) -> None:
    options = {"alpha": 0.3, "kl_budget": 0.5, "critic_warmup": 1}
    first = host(**options)
    first.learn(3)
    first.save(tmp_path)
    again = host.resumed(tmp_path, PRIOR, **options)
    assert same(first.weights, again.weights)
    assert again.method.steering == first.method.steering
    assert again.method.steering.objective.omega != 0.3, "the budget has moved it"
    again.learn(1)


ONE = {"omega": 0.3, "alpha": 0.1}


@hosts
@pytest.mark.usefixtures("_few_episodes")
@pytest.mark.parametrize(
    ("saved", "named", "omega", "alpha", "kl_budget"),
    [
        ({"omega": 0.3, "alpha": None}, {"omega": 0.3, "alpha": None}, 0.3, 0.1, None),
        ({"omega": 0.3, "alpha": None}, {"omega": 0.6, "alpha": None}, 0.6, 0.2, None),
        (UNNAMED | {"kl_budget": 1.0}, UNNAMED | {"kl_budget": 3.0}, None, None, 3.0),
        (ONE, UNNAMED | {"kl_budget": 3.0}, 0.3, 0.3, 3.0),  # a first budget goes on from one number
        (ONE, {"omega": 0.4, "alpha": 0.4, "kl_budget": 3.0}, 0.4, 0.4, 3.0),
    ],
)
def test_what_is_named_otherwise_stays_beside_what_follows_from_it(
    host: Any, saved: Any, named: Any, omega: Any, alpha: Any, kl_budget: Any, tmp_path: Path
) -> None:
    host(**saved).save(tmp_path)
    again = host.resumed(tmp_path, PRIOR, **named)
    again.learn(1)
    method = again.method
    assert method.steering.kl_budget == kl_budget
    if omega is not None:
        assert (method.curves["omega"], method.curves["alpha"]) == ([omega], [pytest.approx(alpha)])


@pytest.mark.usefixtures("_few_episodes")
def test_a_runner_measures_where_it_begins_to_learn_and_only_what_its_checkpoint_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = list[Any]()
    right = measuring.run_episodes
    monkeypatch.setattr(measuring, "MAX_EPISODE_STEPS", 30)
    monkeypatch.setattr(measuring, "run_episodes", lambda *given, **named: measured.append(0) or right(*given, **named))
    how = runners.residual(PRIOR, omega=None, alpha=None, states=0.0)
    first = runners.runner(algorithm=how)
    assert not measured, "who only plays needs no weights"
    first.alg.train_mode()
    first.save(str(tmp_path / "model_0.pt"))
    assert measured
    measured.clear()
    again = runners.runner(algorithm=how)
    again.load(str(tmp_path / "model_0.pt"))
    objective = again.alg.steering.objective
    assert objective == first.alg.steering.objective
    assert capsys.readouterr().out.endswith(f"goes on with omega {objective.omega:g} and alpha {objective.alpha:g}\n")
    again.learn(1)
    assert not measured
    named = runners.runner(algorithm=how | {"omega": 0.6})
    named.load(str(tmp_path / "model_0.pt"))
    named.learn(1)
    found = named.alg.steering.objective
    assert (found.omega, found.alpha, found.states) == (0.6, pytest.approx(0.2), 0.0)
    measured.clear()
    other = runners.runner(algorithm=how | {"addon": "addon"})
    other.load(str(tmp_path / "model_0.pt"))
    other.learn(1)
    assert measured, "in another add-on a nat has another worth"


def test_a_checkpoint_keeps_the_states_of_the_prior(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    how = runners.residual(PRIOR, states=0.1)
    first, again = (runners.runner(algorithm=how) for _ in range(2))
    first.alg.method.density = fit_density(PRIOR.normalizer(torch.randn(200, 3)), PRIOR.normalizer)
    first.save(str(tmp_path / "model_0.pt"))
    again.load(str(tmp_path / "model_0.pt"))
    torch.testing.assert_close(again.alg.method.density.tensors(), first.alg.method.density.tensors())
    monkeypatch.setattr(measuring, "run_episodes", None)  # nothing is measured again
    again.learn(1)


@hosts
def test_a_worth_that_the_priors_file_tells_is_said_to_be_of_the_reward_that_it_was_trained_with(
    host: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card = {"nat_worth": {"value": 0.5, "error": 0.01, "episodes": 64}}
    save_policy(tmp_path / "a.safetensors", small_policy(hidden=(16, 16)), card)
    for named, alpha in ((UNNAMED, 0.17), ({"omega": None, "alpha": 0.1}, 0.1)):
        started = host(str(tmp_path / "a.safetensors"), **named)
        started.learn(1)
        objective = started.method.steering.objective
        assert (objective.omega, objective.alpha) == (0.5, alpha)
    said = "of the reward that it was trained with (where yours is scaled otherwise, name omega and alpha), and states"
    assert said in capsys.readouterr().out


@hosts
def test_what_was_saved_beside_another_prior_is_refused_with_both_names(host: Any, tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_policy(tmp_path / f"{name}.safetensors", small_policy(hidden=(16, 16)), {})
    host(str(tmp_path / "a.safetensors")).save(tmp_path)
    for prior, name in ((str(tmp_path / "b.safetensors"), "b.safetensors"), (PRIOR, "a Policy")):
        with pytest.raises(UsageError, match=f"prior was .*a.safetensors, and .*{name} is another"):
            host.resumed(tmp_path, prior)
    (tmp_path / "b.safetensors").replace(tmp_path / "a.safetensors")
    with pytest.raises(UsageError, match="a.safetensors, and today's has other numbers"):
        host.resumed(tmp_path, str(tmp_path / "a.safetensors"))


class Mine:
    """A prior of one's own, whose log-probabilities are changed."""

    def __init__(self, wrong: Any) -> None:
        self.wrong = wrong

    def log_prob(self, observations: torch.Tensor, actions: torch.Tensor) -> Any:
        return self.wrong(PRIOR.log_prob(observations, actions))


@pytest.mark.parametrize(
    ("host", "omega", "more"),
    [(InRslRl, [0.3], {}), (InRslRl, [0.3, 3.0], {"actor": runners.POLICY_ACTOR}), (InSb3, [0.3], {})],
)
def test_the_unit_of_rewards_and_weights_changes_nothing(host: Any, omega: list[float], more: dict[str, Any]) -> None:
    explained = []
    for unit in (1.0, 1e-5):
        ends = [unit * end for end in omega]
        started = host(omega=ends if len(ends) > 1 else ends[0], alpha=0.2 * unit, **more)
        step = started.started.env.step

        def step_in_unit(actions: Any, step: Any = step, unit: float = unit) -> Any:
            observations, rewards, *rest = step(actions)
            return observations, rewards * unit, *rest

        started.started.env.step = step_in_unit
        started.learn(4)
        explained.append(started.method.curves["explained_variance"])
    assert explained[1] == pytest.approx(explained[0], abs=0.02)


@hosts
def test_a_reward_that_is_not_finite_is_not_learnt_from(host: Any) -> None:
    started = host(Mine(lambda found: found * math.nan))
    before = started.weights
    with pytest.raises(NumericError, match="the prior's log-probability is not finite in this iteration"):
        started.learn(1)
    assert same(before, started.weights)


@hosts
@pytest.mark.parametrize(
    ("gives", "more", "said"),
    [
        (lambda found: found[:3], {}, r"a tensor of shape \(3,\)"),
        (lambda found: found.numpy(), {}, "a ndarray; of [0-9]+ actions"),
        (lambda found: found, {"log_prior_budget": 1.0}, "which this prior does not tell: take kl_budget"),
    ],
)
def test_what_a_log_prob_of_ones_own_does_not_tell_is_said(host: Any, gives: Any, more: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        host(Mine(gives), **more).learn(1)


def test_a_training_beside_a_prior_that_only_scores_ends_without_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    prior = Mine(lambda found: found)
    runners.runner(algorithm=runners.residual(prior), max_iterations=1).learn(1)
    model = InSb3(prior, verbose=1).started.learn(1)
    assert "prior with the mean action" not in capsys.readouterr().out
    with pytest.raises(UsageError, match="leave states, keep and the verdict out"):
        model.verdict()


@hosts
@pytest.mark.filterwarnings("ignore:.*it runs as it is")
def test_a_prior_that_runs_as_it_is_is_known_again_by_its_file(host: Any, tmp_path: Path) -> None:
    files = sine(tmp_path / "a.pt", 1.0), sine(tmp_path / "b.pt", 2.0)
    a, b = ({"path": str(file), "std": 0.5, "trust": True} for file in files)
    host(a).save(tmp_path)
    host.resumed(tmp_path, a).learn(1)
    with pytest.raises(UsageError, match=r"prior was .*a.pt, and .*b.pt is another"):
        host.resumed(tmp_path, b)
    with pytest.raises(UsageError, match=r"there is no prior|does not hold its prior, .*a.pt"):
        host.resumed(tmp_path, None)


@hosts
@pytest.mark.filterwarnings("ignore:.*it runs as it is")
def test_a_memory_is_followed_along_each_episode_of_a_rollout_and_while_measuring(host: Any, tmp_path: Path) -> None:
    prior = host({"path": str(remembering(tmp_path / "a.pt")), "std": 0.5, "trust": True}).method.prior
    seen, actions = torch.randn(6, 4, 3), torch.randn(6, 4, 2)
    ended = torch.zeros(6, 4, dtype=torch.bool)
    ended[1, 0] = ended[3, 2] = ended[4, 2] = True
    means = torch.zeros(6, 4, 2)
    for column, steps in ((0, [2, 4]), (1, [6]), (2, [4, 1, 1]), (3, [6])):
        means[:, column] = torch.cat([part.cumsum(0) for part in seen[:, column, :2].split(steps)]).sin()
    wanted = torch.distributions.Normal(means, 0.5).log_prob(actions).sum(-1)

    observations = seen if host is InSb3 else TensorDict({"policy": seen}, batch_size=[6, 4])
    prior.reset()
    parts = [prior.score(observations[rows], actions[rows], ended[rows])[0] for rows in (slice(0, 3), slice(3, 6))]
    torch.testing.assert_close(torch.cat(parts), wanted)
    prior.reset()
    for step in range(6):
        torch.testing.assert_close(prior.distribution(observations[step]).log_prob(actions[step]), wanted[step])
        prior.reset(ended[step])


@hosts
def test_a_program_runs_where_true_says_that_it_is_trusted(host: Any, tmp_path: Path) -> None:
    path = str(sine(tmp_path / "a.pt"))
    with pytest.raises(UsageError, match=r"add trust .*beside the path: prior=\{'path': FILE, "):
        host(path)
    with pytest.raises(UsageError, match=r"if you trust it, add trust \(in Python, trust=True\)$"):
        host({"path": path, "std": 0.5, "trust": "false"})


@hosts
def test_a_state_that_ends_its_episode_is_priced_as_if_it_lasted(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes are shorter than the steps that are not priced, so nothing else is; some end at a time limit."""
    ends, cuts = list[Any](), list[Any]()
    theirs, others = runner_envs.Drift.step, sb3_models.Drift.step

    def step(env: Any, actions: Any) -> Any:
        found = theirs(env, actions)
        cuts.append(found[3]["time_outs"] & (torch.arange(8) % 2 > 0))
        ends.append((found[2] > 0) & ~cuts[-1])
        return *found[:3], {"time_outs": cuts[-1]}

    def other_step(env: Any, action: Any) -> Any:
        seen, reward, ended, cut, info = others(env, action)
        ends.append(torch.tensor(ended or (cut and seen[0] > 0.0)))
        cuts.append(torch.tensor(cut) & ~ends[-1])
        return seen, reward, bool(ends[-1]), bool(cuts[-1]), info

    monkeypatch.setattr(runner_envs.Drift, "step", step)
    monkeypatch.setattr(sb3_models.Drift, "step", other_step)
    ours = host(gamma=0.9)
    ours.method.density, weights = Far(), ours.method.steering.objective
    ours.method.steering.objective = replace(weights, states=0.5)
    ours.learn(2)
    price = ours.method.rollout_rewards.reward.states
    ended, cut = (torch.stack(told).flatten()[-price.numel() :].view_as(price) for told in (ends, cuts))
    torch.testing.assert_close(price, torch.where(ended, 0.5 * -4.0 * 10.0, 0.0))
    assert ended.any()
    assert cut.any()
