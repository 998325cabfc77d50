"""A policy with dials: at the start its prior, at each position an ordinary policy, in a file, for other programs."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from several import ALPHA, FAST, QUIET, prior_file
from shaken import shaken
from tiny_envs import tiny
from typed_commands import failed, refused

import repolicy
from repolicy.addons.addon_names import dials, with_weights
from repolicy.cli import main as cli
from repolicy.cli.inspection import inspect
from repolicy.errors import FileError, UsageError
from repolicy.evaluation import evaluate
from repolicy.learning.training import customize
from repolicy.objective import Objective, residual
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import save_policy
from repolicy.policies.modulated import DEGREE, ConditionedPolicy, FilmMlp, exponents, polynomials
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.policies.storage import read, serialize
from repolicy.priors.opening import read_policy
from repolicy.ranges import Dial, Range

BOX = ActionSpace("continuous", (2,), (-2.0, -2.0), (2.0, 2.0))
PLAIN = PolicySpec(4, BOX, hidden=(8, 6), initial_std=0.35)
SPECS = {
    "tanh": PLAIN,
    "elu": replace(PLAIN, activation="elu"),
    "relu": replace(PLAIN, activation="relu", hidden=(8,)),
    "swish": replace(PLAIN, activation="swish", std="softplus"),
    "norms": replace(PLAIN, norms=("before", "after")),
    "linear": replace(PLAIN, hidden=()),
    "state_gaussian": replace(PLAIN, family="state_gaussian"),
    "squashed": replace(PLAIN, family="squashed"),
    "features": replace(PLAIN, family="features_gaussian"),
    "categorical": PolicySpec(4, ActionSpace("discrete", (3, 2)), "categorical", hidden=(8,)),
}


def prior(kind: str) -> Policy:
    made = shaken(Policy(SPECS[kind]), seed=0)
    generator = torch.Generator().manual_seed(1)
    seen = 2.0 + 3.0 * torch.randn(50, 4, generator=generator).double()
    made.normalizer.update(torch.stack([torch.full((4,), 50.0).double(), seen.sum(0), seen.square().sum(0)]))
    return made


def turned(kind: str, its: tuple[Dial, ...]) -> Any:
    """A policy with dials that is its prior no more."""
    return shaken(ConditionedPolicy.from_prior(prior(kind), its), seed=3)


OMEGA, QUIETLY, FASTER = Dial("omega", 0.03, 3.0), Dial("quiet", 0.0, 2.0, "linear"), Dial("fast", 0.5, 1.0, "linear")
THREE = (OMEGA, QUIETLY, FASTER)
EVERY = [(kind, (OMEGA,)) for kind in SPECS]
EVERY += [(kind, THREE) for kind in ("tanh", "swish", "norms", "linear", "state_gaussian", "categorical")]
every = pytest.mark.parametrize(("kind", "its"), EVERY)


def seen(its: tuple[Dial, ...], place: float | None = None) -> torch.Tensor:
    """Fifty observations, all at one position of each dial or each at its own."""
    generator = torch.Generator().manual_seed(2)
    places = torch.rand(50, len(its), generator=generator) * 2 - 1
    places = places if place is None else torch.full_like(places, place)
    return torch.cat([2.0 + 3.0 * torch.randn(50, 4, generator=generator), places], 1)


@torch.no_grad()
@every
def test_at_the_start_it_is_the_prior_at_every_position_to_the_bit(kind: str, its: tuple[Dial, ...]) -> None:
    start, observations = prior(kind), seen(its)
    made = ConditionedPolicy.from_prior(start, its)
    outputs = made.network(made.normalizer(observations))
    wanted = start.network(start.normalizer(observations[:, :4]))
    assert torch.equal(outputs[:, : wanted.shape[1]], wanted)
    assert torch.equal(outputs[:, wanted.shape[1] :], torch.zeros(50, outputs.shape[1] - wanted.shape[1]))
    found, sure = made(observations), start(observations[:, :4])
    assert torch.equal(found.mode(), sure.mode())
    if hasattr(sure, "log_std"):
        assert torch.equal(found.log_std.expand(50, 2), sure.log_std.expand(50, 2))
    for place in (-1.0, 0.2, 1.0):
        state = made.at(**{dial.name: dial.value(place) for dial in its}).state_dict()
        assert all(torch.equal(state[name], value) for name, value in start.state_dict().items())


@torch.no_grad()
@every
def test_a_position_is_an_ordinary_policy_that_acts_alike(kind: str, its: tuple[Dial, ...]) -> None:
    made = turned(kind, its)
    for place in (-1.0, 0.2, 1.0):
        observations, values = seen(its, place), {dial.name: dial.value(place) for dial in its}
        plain, actions = made.at(**values), made(observations).sample(torch.Generator().manual_seed(4))
        found = plain.log_prob(observations[:, :4], actions)
        torch.testing.assert_close(found, made.log_prob(observations, actions), atol=1e-4, rtol=1e-4)
        mode = plain(observations[:, :4]).mode()
        torch.testing.assert_close(mode, made(observations).mode(), atol=1e-4, rtol=1e-4)
        for dial in its:
            other = made.at(**values | {dial.name: dial.value(-place)})
            assert not torch.allclose(other(observations[:, :4]).mode().float(), mode.float(), atol=0.01)


@every
def test_acting_scores_what_it_did(kind: str, its: tuple[Dial, ...]) -> None:
    """The snapshot in NumPy, whose scales are kept until a position changes."""
    made = turned(kind, its)
    actor = made.actor(3, 50, torch.Generator().manual_seed(5))
    observations = [seen(its, 0.3), seen(its, 0.3), seen(its)]
    actions = torch.stack([torch.as_tensor(actor(each.numpy())) for each in observations])
    with torch.no_grad():
        wanted = made(torch.stack(observations)).log_prob(actions)
    torch.testing.assert_close(actor.log_probs(actions), wanted, atol=1e-4, rtol=1e-4)


def test_a_snapshot_stays_as_it_was_with_one_number_to_see_too() -> None:
    network, inputs = FilmMlp(1, (4,), 1), np.full((1, 2), 0.5, np.float32)
    snapshot = network.snapshot()
    before = snapshot(inputs)
    for parameter in network.parameters():
        parameter.data.add_(1.0)
    assert np.array_equal(snapshot(inputs), before)


def test_the_polynomials_are_chebyshevs_and_stay_at_the_ends() -> None:
    places = torch.linspace(-1.0, 1.0, 9)
    wanted = torch.stack([places, 2 * places**2 - 1, 4 * places**3 - 3 * places], 1)
    torch.testing.assert_close(polynomials(places[:, None])[:, :3], wanted, atol=1e-5, rtol=0)
    assert torch.equal(polynomials(torch.tensor([[1.7]])), polynomials(torch.tensor([[1.0]])))


def test_outside_of_the_range_it_warns_and_acts_as_at_the_end() -> None:
    made = turned("tanh", (OMEGA,))
    with pytest.warns(UserWarning, match="omega is 30, and this policy was trained from 0.03 to 3: it acts as at 3"):
        found = made.at(30.0)
    assert torch.equal(found.network.weights[0], made.at(3.0).network.weights[0])
    for wrong in (0.0, -1.0, float("nan"), float("inf"), "1", True):
        with pytest.raises(UsageError, match="a number above 0: this policy's go from 0.03 to 3"):
            made.at(wrong)


LEG = Dial("hind_leg(joint=foot)", 0.0, 2.0, "linear")


@pytest.mark.parametrize("its", [(OMEGA,), THREE, (OMEGA, LEG)])
def test_what_a_refusal_advises_in_python_works(its: tuple[Dial, ...]) -> None:
    policy = ConditionedPolicy.from_prior(prior("tanh"), its)
    with pytest.raises(UsageError) as refusal:
        evaluate(policy, "Hopper-v4")
    with pytest.raises(UsageError, match=re.escape(str(refusal.value))):
        policy.predict(np.zeros(4))
    advised = str(refusal.value).rpartition("in Python, ")[2]
    middle = {dial.name: float(f"{dial.value(0.0):.3g}") for dial in its}
    found = eval(advised, {"policy": policy})
    assert all(map(torch.equal, found.state_dict().values(), policy.at(**middle).state_dict().values()))


def test_the_polynomials_are_all_products_up_to_the_degree() -> None:
    """They and a constant fit any product of powers up to that degree, and none beyond it."""
    places = torch.rand(200, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 - 1
    found = torch.cat([torch.ones(200, 1, dtype=torch.float64), polynomials(places)], 1)
    assert found.shape[1] - 1 == len(exponents(2)) == 14
    assert [len(exponents(dials)) for dials in (1, 3, 4)] == [4, 34, 69]
    x, y = places.unbind(1)
    for one, other in ((4, 0), (2, 2), (1, 3), (0, 1), (3, 2), (0, 5)):
        target = x**one * y**other
        fitted = found @ torch.linalg.lstsq(found, target[:, None]).solution
        assert (float((fitted[:, 0] - target).abs().max()) < 1e-9) == (one + other <= DEGREE)


@pytest.mark.parametrize(
    ("dial", "values", "spread"),
    [
        (OMEGA, [0.03, 0.3, 3.0], [0.03, 0.0949, 0.3, 0.949, 3.0]),
        (QUIETLY, [0.0, 1.0, 2.0], [0.0, 0.5, 1.0, 1.5, 2.0]),
    ],
)
def test_a_dial_counts_weights_or_their_ratios(dial: Dial, values: list[float], spread: list[float]) -> None:
    assert [dial.place(value) for value in values] == pytest.approx([-1.0, 0.0, 1.0])
    assert dial.spread(5) == pytest.approx(spread, rel=1e-3)
    assert dial.value(torch.tensor([-1.0, 0.0, 1.0]).double()).tolist() == pytest.approx(values)


def test_each_dial_must_be_named_once() -> None:
    made = ConditionedPolicy.from_prior(prior("tanh"), THREE)
    asked: list[tuple[float | None, dict[str, float]]] = [
        (0.3, {}), (None, {}), (None, {"omega": 0.3}), (0.3, {"quiet": 1.0}),
        (None, {"omega": 0.3, "quiet": 1.0, "slow": 1.0}),
    ]  # fmt: skip
    said = "the dials omega .* and quiet .*: name one value for each, such as omega"
    for value, values in asked:
        with pytest.raises(UsageError, match=said):
            made.at(value, **values)
    with pytest.raises(UsageError, match="quiet is -1; it must be a number 0 or above: this policy's go from 0 to 2"):
        made.at(omega=0.3, quiet=-1, fast=1.0)
    one = ConditionedPolicy.from_prior(prior("tanh"), [QUIETLY])
    assert torch.equal(one.at(0.0).network.weights[0], one.at(quiet=0.0).network.weights[0])


def test_the_range_of_an_addon_goes_by_its_name_alone() -> None:
    asked = ["hind_leg(joint=bshin)=0..2", "some/folder=1/my.py:quiet=0.5..1e1", "height=0.5", "m:still"]
    assert dials(asked) == (
        Dial("hind_leg(joint=bshin)", 0.0, 2.0, "linear"), Dial("quiet", 0.5, 10.0, "linear")
    )  # fmt: skip
    assert with_weights(asked, {"quiet": 3.0}) == (
        "hind_leg(joint=bshin)=1.0", "some/folder=1/my.py:quiet=3.0", "height=0.5", "m:still"
    )  # fmt: skip
    with pytest.raises(UsageError, match="has a range of weights, which goes with `repolicy customize`"):
        evaluate("halfcheetah", addon="hind_leg=0..2", episodes=1)


def test_an_objective_tells_its_dials_and_is_itself_at_a_value() -> None:
    both = residual(Range(0.1, 3.0), Range(0.05, 0.5), 0.0)
    assert [dial.name for dial in both.dials] == ["omega", "alpha"]
    assert both.at({"omega": 0.3, "alpha": 0.2, "quiet": 1.0}) == residual(0.3, 0.2)
    assert Objective(**both.as_dict()) == both
    assert both.as_dict() == {"task": "addon", "omega": [0.1, 3.0], "alpha": [0.05, 0.5], "bonus": 0.0}


# Files ----------------------------------------------------------------------------------------------------------------
@pytest.fixture
def file(tmp_path: Path) -> Path:
    start = read_policy(prior_file(tmp_path)).policy
    made = ConditionedPolicy.from_prior(start, (OMEGA, QUIETLY))
    made.network.film.data.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(0))
    request = {"env": tiny("LinearQuadratic"), "addons": [f"{FAST}=0.5", f"{QUIET}=0..2"]}
    request["objective"] = residual(Range(0.03, 3.0), ALPHA, 0.0).as_dict()
    path = tmp_path / "policy.safetensors"
    save_policy(path, made, {"request": request, "which": "last", "evaluation": {"task": 1.0}}, start)
    return path


def test_a_position_is_a_file_like_any_other(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["dial", str(file), "--at", "quiet=1.5", "--at", "omega=0.3", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["at"] == {"omega": 0.3, "quiet": 1.5}
    assert found["file"] == str(file.with_name("policy-trained-omega-0.3-quiet-1.5.safetensors"))
    saved, observations = read_policy(found["file"]), torch.randn(10, 1)
    wanted = repolicy.dial(file, omega=0.3, quiet=1.5)
    assert torch.equal(saved.policy(observations).mode(), wanted(observations).mode())
    assert saved.card["request"]["addons"] == [f"{FAST}=0.5", f"{QUIET}=1.5"]
    assert saved.card["request"]["objective"] == residual(0.3, ALPHA).as_dict()
    assert "evaluation" not in saved.card
    assert saved.prior is not None
    other = repolicy.dial(file, omega=3.0, quiet=1.5)
    assert not torch.equal(saved.policy(observations).mode(), other(observations).mode())
    for path, said in (
        (found["file"], "trained at omega = 0.3, quiet = 1.5 of"),
        (file, "takes as inputs, in this order: omega from 0.03 to 3, quiet from 0 to 2"),
    ):
        cli.main(["inspect", str(path)])
        assert said in " ".join(capsys.readouterr().out.split())
    assert evaluate(found["file"], episodes=1, trust=True).addon is not None
    cli.main(["dial", str(file), "--at", "quiet=3", "--at", "omega=0.3"])
    assert "warning: quiet is 3, and this policy was trained from 0 to 2" in " ".join(capsys.readouterr().err.split())
    end = read_policy(file.with_name("policy-trained-omega-0.3-quiet-2.safetensors"))
    assert end.card["dial"]["values"] == {"omega": 0.3, "quiet": 2.0}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--at omega=0.3", "name one value for each, such as omega = 0.3, quiet = 1"),
        ("--at omega=0.3 --at omega=0.4", "give one number, or, of several dials"),
        ("--at omega=0.3 --at quiet=x", "must be a number or NAME=NUMBER"),
        ("--at omega=0.3 --at quiet=1 --how weights", "there is nothing to mix"),
        ("--at omega=0.3 --at quiet=1 --episodes 10", "--env, --addon and --episodes are for the report"),
    ],
)
def test_what_cannot_be_turned_is_refused(
    file: Path, words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, 2, "dial", str(file), *words.split())


def test_a_free_dial_has_no_names_and_its_position_tells_where_it_is_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start, path = read_policy(prior_file(tmp_path)).policy, tmp_path / "made.safetensors"
    save_policy(path, start, {"dial": {"at": 0.2, "how": "trained", "of": "a run"}}, start)
    with pytest.raises(UsageError, match="no trained dial of a name"):
        repolicy.dial(path, omega=0.3)
    assert "--at takes one number" in failed(capsys, "dial", path, "--at", "omega=0.3")
    assert inspect(path)["dial"] == "trained at omega = 0.2 of a run"


def test_where_one_policy_is_wanted_it_says_how_to_keep_one(file: Path, tmp_path: Path) -> None:
    said = r"every omega from 0\.03 to 3 and quiet from 0 to 2.*--at omega=0\.3 --at quiet=1 --out.*at\(omega=0\.3, q"
    with pytest.raises(UsageError, match=said):
        evaluate(file, episodes=1, trust=True)
    with pytest.raises(UsageError, match="the dials omega .* is no prior"):
        customize(file, QUIET, residual(0.1, 0.1), tmp_path / "run", env=tiny("LinearQuadratic"))


DIALS = [dict(dial._asdict()) for dial in (OMEGA, QUIETLY)]
FIVE = [DIALS[0] | {"name": f"weight_{place}"} for place in range(5)]
OTHERS: list[Any] = [
    DIALS[:1], DIALS * 2, DIALS * 3, [], "text", [1], [{"name": "omega"}],
    *([DIALS[0], DIALS[1] | wrong] for wrong in ({"scale": "root"}, {"low": -1}, {"high": 0}, {"name": "omega"})),
]  # fmt: skip


@pytest.mark.parametrize(("dials", "sentence"), [*((dials, "") for dials in OTHERS), (FIVE, "it has 5 dials of 5")])
def test_a_file_with_other_dials_is_refused(file: Path, dials: Any, sentence: str) -> None:
    tensors, header = read(file, "policy")
    assert header["dials"] == DIALS
    file.write_bytes(serialize("policy", tensors, header | {"dials": dials}))
    with pytest.raises(FileError, match=f"{re.escape(str(file))}.*{sentence}"):
        read_policy(file)
