"""Dials that cost no training: exact on linear–quadratic control, normalized densities, files like any other."""

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import linear_quadratic as lq
import pytest
import torch
from several import QUIET
from shaken import shaken
from torch import Tensor
from typed_commands import refused

import repolicy
from repolicy.cli import main as cli
from repolicy.errors import UsageError
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.export import export
from repolicy.policies.file import SavedPolicy, save_policy
from repolicy.policies.network import load_layers
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.priors.dials import METHODS, How, dial, interpolate_policies
from repolicy.priors.opening import read_policy
from repolicy.report import pieces
from repolicy.runs.result import Result

BOX = ActionSpace("continuous", (1,), (-3.0,), (3.0,))
CHOICES = ActionSpace("discrete", (3, 2), (), ())
GAUSSIAN = PolicySpec(4, BOX, hidden=(8, 8))


def pair(family: str) -> tuple[Policy, Policy]:
    actions = CHOICES if family == "categorical" else BOX
    prior = shaken(Policy(replace(GAUSSIAN, actions=actions, family=family)))
    return prior, shaken(deepcopy(prior))


@pytest.mark.parametrize("how", METHODS)
def test_a_dial_leaves_a_users_random_numbers_alone(how: How) -> None:
    policies = pair("gaussian")
    before = torch.random.get_rng_state()
    interpolate_policies(*policies, 0.5, how)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("how", METHODS)
def test_choices_count_as_the_customized_policy_counts_them(how: How) -> None:
    """A prior's file may not tell where the environment's choices begin; the customized policy knows it."""
    prior, customized = pair("categorical")
    customized.spec = replace(customized.spec, actions=replace(CHOICES, low=(1.0, 5.0)))
    observations = torch.ones(1, 4).numpy()
    found = interpolate_policies(prior, customized, 0.0, how).predict(observations)[0]
    assert (found == prior.predict(observations)[0] + [1, 5]).all()
    assert prior.actions == CHOICES


def as_policy(linear: lq.LinearGaussian) -> Policy:
    """The same as a network: x = relu(x) − relu(−x)."""
    m, n = linear.gain.shape
    space = ActionSpace("continuous", (m,), (-1.0,) * m, (1.0,) * m)
    policy = Policy(PolicySpec(n, space, hidden=(2 * n,), activation="relu", min_std=0.0, observation_bound=None))
    policy.normalizer.load_state_dict(policy.normalizer.state_dict() | {"var": torch.ones(n).double() - 1e-8})
    eye, gain = torch.eye(n), linear.gain.float()
    load_layers(
        policy.network,
        [(torch.cat([eye, -eye]), torch.zeros(2 * n)), (torch.cat([-gain, gain], 1), torch.zeros(m))],
    )
    policy.log_std.data = linear.covariance.diagonal().sqrt().log().float()
    return policy


@pytest.mark.parametrize("t", [0.1, 0.5, 0.9, 1.5])
def test_without_a_future_the_mixture_is_the_optimum_of_another_weight(t: float) -> None:
    """π·exp(r/ω) to the power t, with π^(1−t), is π·exp(t·r/ω): the optimum for ω/t, known in closed form."""
    cost = torch.tensor([[1.0, 0.0, 0.2, -0.1], [0.0, 1.0, 0.3, 0.4], [0.2, 0.3, 0.6, 0.0], [-0.1, 0.4, 0.0, 0.9]])
    system = lq.LinearQuadratic(0.9 * torch.eye(2), 0.5 * torch.eye(2), cost, discount=0.0)
    prior = lq.LinearGaussian(torch.tensor([[0.5, -0.2], [0.1, 0.7]]), torch.diag(torch.tensor([0.4, 0.2])))

    def optimum(weight: float) -> lq.LinearGaussian:
        return lq.linear_quadratic_optimal(lq.linear_quadratic_augmented(system, prior, weight), weight).policy

    ends, wanted = (as_policy(prior), as_policy(optimum(0.3))), optimum(0.3 / t)
    found, states = interpolate_policies(*ends, t), torch.randn(50, 2)
    means = found(states).mode().double()
    assert torch.allclose(means, -states.double() @ wanted.gain.T, rtol=1e-6, atol=1e-6)
    assert torch.allclose(found.std.double() ** 2, wanted.covariance.diagonal(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("how", METHODS)
@pytest.mark.parametrize("family", ["gaussian", "squashed", "categorical"])
def test_its_ends_are_the_two_policies(family: str, how: Any) -> None:
    prior, customized = pair(family)
    observations = torch.randn(64, 4)
    for t, end in ((0.0, prior), (1.0, customized)):
        actions = end(observations).sample()
        found = interpolate_policies(prior, customized, t, how)
        assert torch.allclose(found.log_prob(observations, actions), end.log_prob(observations, actions), atol=1e-5)
        assert torch.allclose(found(observations).mode(), end(observations).mode(), atol=1e-6)


@pytest.mark.parametrize("t", [-0.2, 0.3, 0.8])
@pytest.mark.parametrize("family", ["gaussian", "squashed", "categorical"])
def test_the_mixture_is_the_product_of_the_densities_and_sums_up_to_one(family: str, t: float) -> None:
    prior, customized = pair(family)
    found, observations = interpolate_policies(prior, customized, t), torch.randn(5, 4)
    if family == "categorical":
        actions = torch.cartesian_prod(torch.arange(3.0), torch.arange(2.0))[:, None].expand(-1, 5, 2)
        volumes = torch.ones(6, 1)
    else:
        grid = torch.linspace(-12.0, 12.0, 4001)
        slope = 1 - torch.tanh(grid) ** 2 if family == "squashed" else torch.ones_like(grid)
        actions, volumes = grid[:, None, None].expand(-1, 5, 1), (slope * (grid[1] - grid[0]))[:, None]

    def scores(policy: Policy) -> Tensor:
        return policy.log_prob(observations.expand(len(actions), 5, 4), actions).double()

    product = (1 - t) * scores(prior) + t * scores(customized)
    assert torch.allclose((scores(found).exp() * volumes).sum(0), torch.ones(5).double(), atol=1e-4)
    likely = product > product.max() - 12.0
    rest = torch.where(likely, scores(found) - product, torch.nan)
    spread = (rest - rest.nanmean(0)).abs().nan_to_num(0.0)
    assert spread.max() < 1e-4


@pytest.mark.parametrize(
    ("one", "other", "t", "how", "message"),
    [
        ({}, {"family": "squashed"}, 0.5, "mixture", "different families, gaussian and squashed"),
        ({}, {"observation_size": 5}, 0.5, "mixture", "different numbers in an observation, 4 and 5"),
        ({}, {"hidden": (9, 9)}, 0.5, "weights", "differ in hidden"),
        ({}, {"hidden": (9,)}, 0.5, "mixture", "2 hidden layers of tanh, .* 1 hidden layers of tanh"),
        ({"family": "state_gaussian"}, {"family": "state_gaussian"}, 0.5, "mixture", "depends on the state"),
        ({}, {}, float("nan"), "mixture", "t is nan; it must be a number"),
        ({"activation": "leaky_relu"}, {"activation": "leaky_relu", "slope": 0.3}, 0.5, "mixture", "alike, slopes too"),
        ({"clips": True}, {}, 0.5, "mixture", "different ways of cutting actions to their bounds"),
    ],
)
def test_what_has_nothing_between_is_refused_in_a_sentence(
    one: dict[str, Any], other: dict[str, Any], t: float, how: How, message: str
) -> None:
    ends = (Policy(replace(GAUSSIAN, **changes)) for changes in (one, other))
    with pytest.raises(UsageError, match=message):
        interpolate_policies(*ends, t, how)


def test_what_has_no_prior_or_another_normalizer_is_refused_in_a_sentence() -> None:
    prior, customized = pair("gaussian")
    with pytest.raises(UsageError, match="holds no prior"):
        dial(SavedPolicy(prior, None, {}), 0.5)
    customized.normalizer.update(torch.ones(3, 4))
    with pytest.raises(UsageError, match="normalize observations differently"):
        interpolate_policies(prior, customized, 0.5)


def test_beyond_the_ends_it_warns_and_stops_where_there_is_no_distribution() -> None:
    prior, customized = pair("gaussian")
    prior.log_std.data.fill_(0.0)
    customized.log_std.data.fill_(0.5)
    with pytest.warns(UserWarning, match="beyond the customized policy"):
        dial(SavedPolicy(customized, prior, {}), 1.2)
    with pytest.raises(UsageError, match=r"between -inf and 1\.58"):
        interpolate_policies(prior, customized, 1.6)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    prior, customized = pair("gaussian")
    path = tmp_path / "policy.safetensors"
    card = {"request": {"env": "InvertedPendulum-v4", "addons": [QUIET]}, "evaluation": {"task": 1.0}}
    save_policy(path, customized, card, prior)
    return path


def test_a_position_is_a_file_like_any_other(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["dial", str(file), "--at", "0.3", "--out", str(tmp_path / "mine.safetensors"), "--json"])
    assert json.loads(capsys.readouterr().out)["at"] == 0.3
    saved, observations = read_policy(tmp_path / "mine.safetensors"), torch.randn(10, 4)
    assert torch.equal(saved.policy(observations).mode(), repolicy.dial(file, 0.3)(observations).mode())
    assert saved.prior is not None
    assert saved.card["dial"]["how"] == "mixture"
    assert "evaluation" not in saved.card
    assert export(saved.policy, tmp_path / "mine.pt", "torchscript") < 1e-5
    cli.main(["inspect", str(tmp_path / "mine.safetensors")])
    assert "mixture at t = 0.3" in capsys.readouterr().out


def test_a_result_turns_too(file: Path) -> None:
    (file.parent / "run.json").write_text("{}")
    found, observations = Result(file.parent, 1, True, {}).at(0.4, "weights"), torch.randn(10, 4)
    assert torch.equal(found(observations).mode(), dial(file, 0.4, "weights")(observations).mode())


def test_a_place_that_cannot_be_written_is_found_before_the_work(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("it began")

    monkeypatch.setattr("repolicy.report.dial_page.evaluate_positions", never)
    monkeypatch.setattr("repolicy.report.movie.render_films", never)
    (tmp_path / "taken").write_text("")
    for words in (
        ["dial", str(file), "--out", f"{tmp_path}/taken"],
        ["render", str(file), "--out", f"{tmp_path}/taken/a.mp4"],
    ):
        assert "cannot be written" in refused(capsys, 1, *words, "--trust")


def test_the_report_has_every_position_and_needs_nothing_else(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pieces, "FILM_SECONDS", 0.1)
    monkeypatch.setattr("repolicy.report.dial_page.films_for_page", lambda shots, say: ([b""] * len(shots), ""))
    with pytest.raises(SystemExit):
        cli.main(["dial", str(file)])  # its add-on is code
    cli.main(["dial", str(file), "--trust", "--episodes", "2", "--out", str(tmp_path / "dial"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [position["at"] for position in found["positions"]] == [index / 10 for index in range(1, 11)]
    assert abs(found["prior"]["kl"]) < 1e-4 < found["positions"][-1]["kl"]
    html = (tmp_path / "dial" / "report.html").read_text()
    assert html.count('data-shown="9"') == 4  # verdict, film, table, command
    assert html.count('<th scope="row">prior</th>') == 1
    assert "t 0</" not in html
    assert "--at 0.7" in html
    assert "http" not in html.replace("http://www.w3.org", "")
