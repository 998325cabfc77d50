"""Priors that are functions, objects and programs with a memory: what they score, along episodes too."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from other_policies import Counting
from tiny_envs import tiny
from torch import Tensor, nn

from repolicy.envs.making import make_envs
from repolicy.envs.rollout import Collector
from repolicy.errors import NumericError, UsageError
from repolicy.evaluation import run_episodes
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.policy import Policy, PolicySpec, make_policy
from repolicy.prepare.beginning import open_prior
from repolicy.priors.finding import find_policy
from repolicy.priors.fitting import fit_std
from repolicy.priors.kinds import MeanPrior, ScoredPrior, Scorer, State, wrap_prior
from repolicy.priors.opening import is_code, load_policy, open_policy, prior_from_source, prior_source, read_policy
from repolicy.readers.reading import Options

TWO = ActionSpace("continuous", (2,))
ONE = ActionSpace("continuous", (1,))
FOUR = ActionSpace("discrete", (4,))


def twice(observations: np.ndarray) -> np.ndarray:
    return np.stack([2.0 * observations[:, 0], observations.sum(1)], axis=1)


def scored(prior: Any) -> Tensor:
    return prior.log_prob(torch.zeros(5, 3), torch.zeros(5, 2))


@pytest.mark.parametrize("std", [0.3, [0.1, 2.0]])
def test_a_mean_with_a_std_scores_as_torchs_normal(std: Any) -> None:
    prior = MeanPrior(twice, std).for_spaces(3, TWO)
    observations, actions = torch.randn(4, 7, 3), torch.randn(4, 7, 2)
    mean = torch.from_numpy(twice(observations.reshape(-1, 3).numpy())).reshape(4, 7, 2)
    wanted = torch.distributions.Normal(mean, torch.tensor(std)).log_prob(actions).sum(-1)
    torch.testing.assert_close(prior.log_prob(observations, actions), wanted)


def test_a_torch_module_drops_nothing_and_learns_no_statistics() -> None:
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2), nn.Dropout(0.5))
    prior, observations = MeanPrior(module, 0.5).for_spaces(3, TWO), 3.0 + torch.randn(5, 3)
    torch.testing.assert_close(prior.means(observations, {})[0], module[1](module[0].eval()(observations)).detach())
    assert int(module[0].num_batches_tracked) == 0


def drawing(observations: np.ndarray) -> np.ndarray:
    return torch.randn(len(observations), 2).numpy()


class Drawing(nn.Module):
    """Samples its actions in any mode, as the policies of Stable-Baselines3's SAC do."""

    def forward(self, observations: Tensor) -> Tensor:
        return torch.randn(len(observations), 2)


class Distributed(nn.Module):
    def forward(self, observations: Tensor) -> torch.distributions.Normal:
        return torch.distributions.Normal(observations[:, :2], 0.3)


def predict(observations: np.ndarray) -> tuple[np.ndarray, None]:
    return twice(observations), None


MEANS_ALONE = r"and must give the mean actions alone, \[N, A\]: name a function"


@pytest.mark.parametrize(
    ("mean", "sentence"),
    [
        (drawing, "drawing gives different actions for the same observations: it draws them"),
        (Drawing(), "Drawing gives different actions for the same observations: it draws them"),
        (predict, f"^predict gave a tuple, {MEANS_ALONE}"),
        (Distributed(), f"^Distributed gave a Normal, {MEANS_ALONE}"),
        (lambda observations: observations[:, 0], r"means of shape \[5\].*must give \[5, 2\]"),
        (lambda observations: {}["gain"], "failed: KeyError"),
    ],
)
def test_what_gives_no_means_or_more_is_told_what_to_give(mean: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        scored(MeanPrior(mean, 0.5).for_spaces(3, TWO))


class Leaning:
    """Knows log-probabilities, in NumPy, and nothing else."""

    def log_prob(self, observations: Tensor, actions: Tensor) -> np.ndarray:
        assert observations.dim() == actions.dim() == 2
        return -np.abs(np.asarray(actions - observations[:, :1])).sum(1)


def test_an_object_with_log_prob_is_asked_in_rows() -> None:
    observations, actions = torch.randn(4, 7, 3), torch.randn(4, 7, 2)
    wanted = -(actions - observations[..., :1]).abs().sum(-1)
    torch.testing.assert_close(wrap_prior(Leaning).log_prob(observations, actions), wanted)


def test_what_a_prior_does_to_its_arguments_stays_with_it() -> None:
    def grasping(observations: np.ndarray) -> np.ndarray:
        observations -= 1.0
        return observations[:, :1]

    class Grasping:
        def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
            return observations.mul_(2.0).sum(-1) + actions.zero_().sum(-1)

    for prior in (MeanPrior(grasping, 0.5), ScoredPrior(Grasping())):
        observations, actions = torch.ones(3, 4, 2), torch.ones(3, 4, 1)
        prior.log_prob(observations, actions)
        assert torch.equal(observations, torch.ones(3, 4, 2))
        assert torch.equal(actions, torch.ones(3, 4, 1))


# A memory -------------------------------------------------------------------------------------------------------------
class CountingInNumPy:
    def begin(self, count: int) -> Any:
        return {"steps": np.zeros((count, 1))}

    def step(self, observations: np.ndarray, state: Any) -> tuple[Any, Any]:
        assert isinstance(state["steps"], np.ndarray)
        return 0.1 * (state["steps"] + 1.0), {"steps": state["steps"] + 1.0}


class CountingInAModule(Counting, nn.Module):
    def step(self, observations: Any, state: State) -> tuple[Any, State]:
        assert isinstance(observations, torch.Tensor)
        return super().step(observations, state)


@pytest.fixture(params=[Counting, CountingInNumPy, CountingInAModule])
def counting(request: pytest.FixtureRequest) -> MeanPrior:
    return MeanPrior(request.param(), 0.5).for_spaces(2, ONE)


@pytest.fixture
def collector() -> Collector:
    """Of environments that show (episode, step), so that what must be remembered can be seen."""
    return Collector(make_envs(tiny("Counter"), 3, 0), 4, torch.Generator().manual_seed(0))


def test_a_memory_runs_along_with_the_episode_and_over_the_ends_of_rollouts(
    counting: MeanPrior, collector: Collector
) -> None:
    scorer, agent = Scorer(counting), Policy(PolicySpec(2, ONE, hidden=(4,)))
    for _ in range(5):
        observations, actions, ended = collector.collect(agent).prior_inputs
        seen = observations[..., 1:] + 1.0
        wanted = torch.distributions.Normal(0.1 * seen, 0.5).log_prob(actions).sum(-1)
        torch.testing.assert_close(scorer(observations, actions, ended), wanted)
    scorer.begin()  # with new environments, it has seen nothing
    fresh = torch.distributions.Normal(torch.full((1, 1, 1), 0.1), 0.5).log_prob(actions[:1]).sum(-1)
    torch.testing.assert_close(scorer(observations[:1], actions[:1], ended[:1]), fresh)


def test_what_could_be_copied_is_the_same_in_another_process() -> None:
    """A prior that is fitted though it could be copied: other ranks read its file themselves."""
    saved = read_policy(find_policy("hopper"))
    observations = torch.randn(5, saved.policy.observation_size)
    for given in ("hopper", Path("hopper")):
        again = prior_from_source(prior_source(given, saved.policy, None, False))
        assert isinstance(again, Policy)
        assert torch.equal(again(observations).mode(), saved.policy(observations).mode())


@pytest.mark.parametrize("options", [Options(std=0.2), Options(std="fit", demonstrations="recorded.npz")])
def test_a_std_that_was_given_is_the_same_in_another_process(
    options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("recorded.npz", observations=np.random.randn(200, 3), actions=np.tanh(np.random.randn(200, 2)))
    layers = nn.ModuleDict({"fc1": nn.Linear(3, 8), "fc2": nn.Linear(8, 8), "fc_mu": nn.Linear(8, 2)})
    torch.save(layers.state_dict() | {"action_scale": torch.ones(2), "action_bias": torch.zeros(2)}, "td3.pth")
    start = open_prior("td3.pth", options, "clone", False, Path("kept"))
    prior, again = start.scoring_prior, prior_from_source(json.loads(json.dumps(start.source)))
    observations, actions = torch.randn(5, 3), torch.randn(5, 2)
    assert isinstance(prior, Policy)
    assert float(prior.std.max()) != 1.0
    torch.testing.assert_close(again.log_prob(observations, actions), prior.log_prob(observations, actions))


@pytest.mark.parametrize("squashed", [False, True])
def test_a_std_is_fitted_to_actions_within_the_bounds_alone(squashed: bool, tmp_path: Path) -> None:
    """A clipped action tells how far the bound is, and its mean may be far beyond."""
    bounds = ActionSpace("continuous", (1,), (-1.0,), (1.0,))
    policy = make_policy(PolicySpec(1, bounds, "squashed" if squashed else "gaussian", (), clips=not squashed), 0)
    states = torch.linspace(-3.0, 3.0, 3_000)[:, None]
    with torch.no_grad():
        policy.network.weights[0].fill_(3.0 if squashed else 1.0)
        means = policy(states).mode()
    before = means + 0.1 * torch.randn(3_000, 1)
    actions = torch.tanh(before) if squashed else before.clip(-1.0, 1.0)
    if squashed:  # noise of TD3, which follows the tanh, brings actions to a bound, and from there
        actions[::4], actions[means > 6.0] = 1.0, 0.5
    file = str(tmp_path / "d.npz")
    np.savez(file, observations=states, actions=actions)
    std, note = fit_std(policy, Options(std="fit", demonstrations=file))
    assert std.tolist() == pytest.approx([0.1], rel=0.1)
    assert f"without the {59 if squashed else 67}% of their numbers" in note
    np.savez(file, observations=states + 9.0, actions=torch.ones(3_000, 1))
    with pytest.raises(UsageError, match="means or its recorded actions are at the bounds, where they tell no std"):
        fit_std(policy, Options(std="fit", demonstrations=file))


def test_a_linked_file_keeps_what_lies_beside_its_link(tmp_path: Path) -> None:
    file = tmp_path / "elsewhere" / "mine.safetensors"
    file.parent.mkdir()
    file.write_bytes(find_policy("hopper").read_bytes())
    (tmp_path / "link.safetensors").symlink_to(file)
    saved = read_policy(file)
    source = prior_source(tmp_path / "link.safetensors", saved.policy, None, False)
    assert source["prior"] == str(tmp_path / "link.safetensors")


def test_code_that_leads_to_a_policy_of_ours_is_copied(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import repolicy\npolicy = repolicy.load_policy('hopper')\n")
    reference, kept = f"{tmp_path / 'mine.py'}:policy", tmp_path / "prior.safetensors"
    for init in ("auto", "copy"):
        start = open_prior(reference, None, init, True, kept)
        assert start.scoring_prior is None
        observations = torch.randn(5, start.saved.policy.observation_size)
        assert torch.equal(start.saved.policy(observations).mode(), load_policy("hopper")(observations).mode())
    with pytest.raises(UsageError, match="does not say which environment"):
        start.env(False)


def test_a_prior_that_knows_its_std_takes_no_other() -> None:
    for known in (MeanPrior(twice, 0.5), ScoredPrior(load_policy("hopper"), "scored")):
        with pytest.raises(UsageError, match="knows its own std"):
            open_policy(known, Options(std=0.2))
        assert open_policy(known).agent is known


def test_what_remembers_acts_by_its_memory(counting: MeanPrior, collector: Collector) -> None:
    for _ in range(5):
        observations, actions, _ = collector.collect(counting, deterministic=True).prior_inputs
        torch.testing.assert_close(actions, 0.1 * (observations[..., 1:] + 1.0))
    assert collector.collect(counting).actions.std() > 0.2


def test_an_evaluation_scores_whole_episodes_with_their_memory(counting: MeanPrior) -> None:
    """Its own actions, scored while acting and again afterwards: the same."""
    envs = make_envs(tiny("Counter"), 2, 0)
    found = run_episodes(counting, envs, 12, prior=counting, deterministic=False)
    assert found.log_prior is not None
    np.testing.assert_allclose(found.log_prior, found.log_policy, rtol=1e-5)
    assert len(set(found.lengths)) > 3


def test_what_remembers_has_no_log_prob_of_single_steps(counting: MeanPrior) -> None:
    with pytest.raises(UsageError, match="has a memory"):
        counting.log_prob(torch.zeros(2, 2), torch.zeros(2, 1))


# What is refused, and how it is found ---------------------------------------------------------------------------------
class Forgetful(CountingInNumPy):
    def begin(self, count: int) -> Any:
        return {} if count else [][0]


class Wide:
    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        return actions


class Needy(Wide):
    def __init__(self, size: int) -> None: ...


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: wrap_prior(lambda observations, noise: noise, name="flow"), "flow takes noise.*--noise.*--chunk"),
        (lambda: wrap_prior(SimpleNamespace(decode=twice), name="flow"), "flow takes noise.*--noise.*--chunk"),
        (lambda: wrap_prior(twice), r"twice gives a mean and no std: give one, such as --std 0.2 \(in Python"),
        (lambda: wrap_prior(twice, 0.0), "the std of twice is 0.0; it must be above 0"),
        (lambda: wrap_prior(twice, [0.1, float("nan")]), "must be above 0"),
        (lambda: wrap_prior(Leaning(), 0.1), "knows its own std"),
        (lambda: wrap_prior(Needy), "Needy cannot be made without arguments: TypeError: .* missing 1 required"),
        (lambda: wrap_prior(3), "the prior is of type int; it must be a policy, an object with log_prob"),
        (lambda: MeanPrior(twice, [0.1, 0.2, 0.3]).for_spaces(3, TWO), "has 3 stds, and an action has 2 numbers"),
        (lambda: MeanPrior(twice, 0.1).for_spaces(3, FOUR), "choices of 4, which have no mean"),
        (lambda: MeanPrior(Forgetful(), 0.1).initial_state(0), "begin of Forgetful failed: IndexError"),
        (
            lambda: MeanPrior(Forgetful(), 0.1).reset_state({"steps": torch.zeros(2, 1)}, torch.ones(2).bool()),
            "the memory of Forgetful cannot begin anew: KeyError: 'steps'",
        ),
        (lambda: scored(ScoredPrior(Wide())), r"gave shape \[5, 2\]; of 5 actions"),
    ],
)
def test_what_is_no_prior_is_one_sentence(make: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        make()


def test_a_log_prob_or_a_mean_that_is_not_finite_is_said() -> None:
    class Zero:
        def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
            return torch.tensor([0.0, 0.0, -math.inf, math.nan, 0.0])

    def infinite(observations: np.ndarray) -> np.ndarray:
        return np.full((len(observations), 2), np.inf)

    with pytest.raises(NumericError, match=r"Zero gave -inf for 2 of 5 actions; it must be finite"):
        scored(ScoredPrior(Zero()))
    with pytest.raises(NumericError, match="infinite gave a mean that is not finite"):
        scored(MeanPrior(infinite, 0.1).for_spaces(3, TWO))


def test_code_is_named_by_the_user_and_found_again_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def act(observations):\n    return observations[:, :1]\n\nclass P:\n    log_prob = None\n")
    reference, options = f"{file}:act", Options(std=0.3)
    assert is_code(reference)
    assert not is_code(str(file))
    found = open_policy(reference, options).agent
    again = prior_from_source(prior_source(reference, found, options, False))
    for prior in (found, again):
        assert isinstance(prior, MeanPrior)
        assert float(prior.log_prob(torch.ones(1, 2), torch.ones(1, 1))) == pytest.approx(-np.log(0.3) - 0.9189, 1e-3)
        assert (prior.name, float(prior.std)) == (reference, pytest.approx(0.3))
    with pytest.raises(UsageError, match="has no 'acts'; did you mean act"):
        open_policy(f"{file}:acts", options)
    with pytest.raises(UsageError, match="runs as it is: leave out --vecnormalize, for files"):
        open_policy(reference, Options(std=0.3, vecnormalize="v.pkl"))


def test_only_what_a_module_holds_can_be_imported_elsewhere() -> None:
    def local(observations: np.ndarray) -> np.ndarray:
        return observations

    assert prior_source(local, wrap_prior(local, 0.1), None, False) is None
    source = prior_source(MeanPrior(twice, [0.1, 0.2]), MeanPrior(twice, [0.1, 0.2]), None, False)
    assert source["prior"] == f"{twice.__module__}:twice"
    again = prior_from_source(source)
    assert isinstance(again, MeanPrior)
    assert again.mean is twice
    assert again.std.tolist() == pytest.approx([0.1, 0.2])
