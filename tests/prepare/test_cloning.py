"""A prior that cannot be copied: its own log-probability is in the return; the actor is fitted to it, in every rank."""

import contextlib
import json
import math
import os
import socket
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import at_once
import numpy as np
import pytest
import torch
from known_optimum import ALPHA, EXACT, FEW, GAIN, STD, WISH, as_policy, gain_and_std, steer
from other_policies import Counting
from small_runs import Log
from tiny_envs import tiny
from torch import Tensor
from typed_commands import answered, typed

from repolicy.cli.main import main as command_line
from repolicy.envs import making
from repolicy.errors import UsageError
from repolicy.learning import segments
from repolicy.learning.multipliers import measure_prior_rewards
from repolicy.learning.training import customize
from repolicy.objective import residual
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import save_policy
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.policies.storage import read
from repolicy.prepare import cloning
from repolicy.prepare.cloning import compare_clone, fit_clone, score_loss
from repolicy.priors.fitting import Samples, fit_normalizer
from repolicy.priors.kinds import MeanPrior, ScoredPrior, ScoringPrior, State, wrap_prior
from repolicy.priors.opening import read_policy
from repolicy.ranges import Range
from repolicy.report.run_page import repeat_command
from repolicy.report.verdict import name_of_prior
from repolicy.runs.folder import RunFolder
from repolicy.runs.machine import shares_memory
from repolicy.runs.result import Result
from repolicy.runs.settings import Settings


class Steering:
    """The same, as nothing but log-probabilities."""

    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        return torch.distributions.Normal(-GAIN * observations[:, 0], STD).log_prob(actions[:, 0])


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it does not matter how near the fit is; linear–quadratic environments are stepped all at once."""
    monkeypatch.setattr(cloning, "FIT_EPOCHS", 1)
    monkeypatch.setattr(making, "GymnasiumEnvs", at_once.batch)


@pytest.fixture
def _near(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean of one number is fitted to 1 % of it by then; log-probabilities take some rounds."""
    monkeypatch.setattr(cloning, "FIT_EPOCHS", 4)
    monkeypatch.setattr(cloning, "SCORED_ROUNDS", 6)


def customized(prior: Any, out: Path, settings: Settings = FEW, **options: Any) -> tuple[Result, Log]:
    said, asked = Log(), {"env": tiny("LinearQuadratic")} | options
    return customize(prior, WISH, residual(2.0 * ALPHA, 0.15), out, settings, callbacks=[said], **asked), said


@pytest.mark.usefixtures("_near")
@pytest.mark.parametrize(
    ("prior", "std"),
    [
        pytest.param(steer, STD, id="a mean"),
        pytest.param(Steering(), None, id="log_prob alone", marks=pytest.mark.long),
    ],
)
def test_the_actor_is_fitted_and_the_prior_itself_scores(prior: Any, std: Any, tmp_path: Path) -> None:
    """While the critic alone is fitted, the actor stays as it was fitted, and nats of the exact prior are logged."""
    before = torch.random.get_rng_state()
    result, said = customized(prior, tmp_path / "run", replace(FEW, critic_warmup=1.0), std=std)
    assert torch.equal(torch.random.get_rng_state(), before)  # a user's random numbers are left alone
    assert gain_and_std(result.policy) == pytest.approx((GAIN, STD), rel=0.1)
    entropy = 0.5 + math.log(STD * math.sqrt(2.0 * math.pi))
    assert result.last["log_prior"] == pytest.approx(-entropy, abs=0.1)
    assert result.last["prior_kl"] == pytest.approx(0.0, abs=0.05)
    [sentence] = [sentence for sentence in said.said if "nats a step from" in sentence]
    assert "with a basic reward of −" in sentence
    assert sentence.endswith("(mean ± std)")
    assert ("where the prior has −" in sentence) == (std is not None)
    folder = RunFolder(result.folder)
    saved, request = read_policy(folder.prior), folder.load_request()
    assert saved.card["clone_of"]["kl"] == pytest.approx(0.0, abs=0.05)
    assert repeat_command(folder, request) == ""  # the prior of a command would be the clone
    assert read_policy(folder.last_policy).card["prior_is"] == saved.card["clone_of"]


@pytest.mark.parametrize(("prior", "std"), [(steer, STD), (Steering(), None)])
def test_a_share_is_kept_of_what_the_prior_earns_or_of_its_clone_where_it_cannot_act(
    prior: Any, std: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloning, "fit", lambda *given, **how: None)
    monkeypatch.setattr(cloning, "SCORED_ROUNDS", 1)
    measured: list[Any] = []

    def noted(prior: Any, *given: Any) -> Any:
        measured.append(prior)
        return measure_prior_rewards(prior, *given)

    monkeypatch.setattr(segments, "measure_prior_rewards", noted)
    customized(prior, tmp_path / "run", replace(FEW, keep=0.9, evaluation_episodes=0), std=std)
    assert [isinstance(each, Policy) for each in measured] == [std is None]


def test_prior_and_clone_are_compared_from_the_same_starts() -> None:
    policy = as_policy(EXACT)
    kl, (of_clone, of_prior) = compare_clone(policy, policy, tiny("LinearQuadratic"), FEW)
    assert kl == pytest.approx(0.0, abs=1e-6)
    assert of_clone.basic.tolist() == of_prior.basic.tolist()


def test_it_is_the_exact_prior_that_scores_and_not_the_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prior that is off by a constant nat has the same clone and another log-probability."""
    monkeypatch.setattr(cloning, "SCORED_ROUNDS", 1)

    class Shifted(Steering):
        def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
            return super().log_prob(observations, actions) + 1.0

    one = replace(FEW, steps=FEW.iteration_steps)
    plain, normalized = customized(Steering(), tmp_path / "plain", one)
    shifted, said = customized(Shifted(), tmp_path / "shifted", one)
    first = [RunFolder(result.folder).read_metrics()["log_prior"][0] for result in (plain, shifted)]
    assert first[1] - first[0] == pytest.approx(1.0, abs=1e-4)
    told = ["normalize its log_prob" in " ".join(log.said) for log in (normalized, said)]
    assert told == [False, True]


def test_a_run_is_resumed_to_the_bit_with_the_same_prior_and_refused_with_another(tmp_path: Path) -> None:
    four = replace(FEW, steps=4 * FEW.iteration_steps, checkpoint_every=1)
    whole, _ = customized(steer, tmp_path / "run", four, std=STD)
    before = whole.policy.state_dict()
    max((tmp_path / "run" / "checkpoints").iterdir()).unlink()
    kept = (tmp_path / "run" / "prior.safetensors").read_bytes()
    again, said = customized(steer, tmp_path / "run", four, std=STD, resume=True)
    assert all(torch.equal(before[name], value) for name, value in again.policy.state_dict().items())
    assert (tmp_path / "run" / "prior.safetensors").read_bytes() == kept
    assert not [sentence for sentence in said.said if "is fitted to it" in sentence]
    clone = str(tmp_path / "run" / "prior.safetensors")  # which was only fitted to the prior
    for other, std in ((lambda observations: -0.5 * observations, STD), (steer, 2 * STD), (clone, None)):
        with pytest.raises(UsageError, match=r"the prior \(or its std\) is not what it was when the run in .* began"):
            customized(other, tmp_path / "run", four, std=std, resume=True)


@pytest.mark.parametrize("as_file", [True, False])
def test_what_could_be_copied_is_fitted_where_that_is_wanted_and_stays_so(as_file: bool, tmp_path: Path) -> None:
    prior: Any = as_policy(EXACT)
    if as_file:
        save_policy(tmp_path / "mine.safetensors", prior, {})
        prior = tmp_path / "mine.safetensors"
    two = replace(FEW, steps=2 * FEW.iteration_steps, checkpoint_every=1)
    whole, said = customized(prior, tmp_path / "run", two, init="clone")
    assert whole.policy.spec.hidden == (64, 64)
    assert any("nats a step from " in sentence for sentence in said.said)
    before = whole.policy.state_dict()
    max((tmp_path / "run" / "checkpoints").iterdir()).unlink()
    for named in ({}, {"init": "clone"}):
        again, _ = customized(prior, tmp_path / "run", two, resume=True, **named)
        assert all(torch.equal(before[name], value) for name, value in again.policy.state_dict().items())
    with pytest.raises(UsageError, match=r"the prior \(or its std\) is not what it was"):
        customized(str(tmp_path / "run" / "prior.safetensors"), tmp_path / "run", two, resume=True)


class Remembering:
    """Repeats half of what it saw in the step before."""

    def begin(self, count: int) -> State:
        return {"seen": torch.zeros(count, 1)}

    def step(self, observations: np.ndarray, state: State) -> tuple[Any, State]:
        return -0.5 * state["seen"], {"seen": torch.from_numpy(observations)}


def test_dials_go_with_a_prior_that_is_fitted(tmp_path: Path) -> None:
    settings = replace(FEW, steps=FEW.iteration_steps, checkpoint_every=1)
    wish, env, objective = f"{tiny('stay_near')}=0..2", tiny("LinearQuadratic"), residual(Range(0.3, 3.0), 0.1, 0.0)
    result = customize(steer, wish, objective, tmp_path / "run", settings, env=env, std=STD)
    dials = read_policy(RunFolder(result.folder).last_policy).policy.dials
    assert {str(each) for each in dials} == {"omega from 0.3 to 3", "stay_near from 0 to 2"}
    kept = tmp_path / "kept.safetensors"
    command_line(["dial", str(result.folder), "--at", "omega=1", "--at", "stay_near=1", "--out", str(kept)])
    assert name_of_prior(read_policy(kept).card) == "the clone of its prior"


@pytest.mark.usefixtures("_near")
def test_a_clone_without_a_memory_says_what_that_costs(tmp_path: Path) -> None:
    result, said = customized(wrap_prior(Remembering(), 0.1), tmp_path / "run", replace(FEW, critic_warmup=1.0))
    [sentence] = [sentence for sentence in said.said if "nats a step from Remembering" in sentence]
    assert "that much of the prior is lost where customizing begins" in sentence
    kl = read_policy(RunFolder(result.folder).prior).card["clone_of"]["kl"]
    assert kl > 1.0
    assert result.last["prior_kl"] == pytest.approx(kl, rel=0.5)
    again, _ = customized(Remembering(), tmp_path / "run", replace(FEW, critic_warmup=1.0), std=0.1, resume=True)
    assert again.finished


ONE = ActionSpace("continuous", (1,))


def test_a_memory_goes_on_from_one_round_of_fitting_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment shows (episode, step), so what the prior would do can be read from it, at every step."""
    seen: list[Samples] = []
    monkeypatch.setattr(cloning, "fit", lambda policy, samples, *_, **__: seen.append(samples))
    monkeypatch.setattr(cloning, "BLOCK", 5)  # shorter than an episode
    fit_clone(MeanPrior(Counting(), 0.5).for_spaces(2, ONE), tiny("Counter"), replace(FEW, steps=3 * 5 * cloning.ENVS))
    assert len(seen) > 1
    torch.testing.assert_close(seen[-1].actions, 0.1 * (seen[-1].observations[:, 1:] + 1.0))


def test_fitting_begins_at_the_mean_of_what_the_prior_does(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[float, float]] = []

    def noted(policy: Policy, samples: Samples, *_: Any, **__: Any) -> None:
        begun.append((policy(samples.observations).mode().mean().item(), samples.actions.mean().item()))

    monkeypatch.setattr(cloning, "fit", noted)
    prior = MeanPrior(lambda observations: 3.0 - GAIN * observations, 0.05).for_spaces(1, ONE)
    fit_clone(prior, tiny("LinearQuadratic"), replace(FEW, steps=2_048))
    actor, wanted = begun[0]
    assert wanted > 0.5
    assert actor == pytest.approx(wanted, abs=0.1)


@pytest.mark.parametrize(("by_samples", "rounds"), [(True, 3), (False, 4)])
def test_choices_are_fitted_by_samples_or_by_their_log_probabilities(
    by_samples: bool, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloning, "SCORED_ROUNDS", 4)
    chooses = Policy(PolicySpec(1, ActionSpace("discrete", (3,)), "categorical", hidden=()))
    chooses.network.weights[0].data = torch.tensor([[1.0], [0.0], [-1.0]])
    chooses.network.biases[0].data.zero_()
    prior: ScoringPrior = chooses if by_samples else ScoredPrior(SimpleNamespace(log_prob=chooses.log_prob))
    policy, steps = fit_clone(prior, tiny("Told") + "?actions=choice", replace(FEW, steps=2_048))
    assert steps == rounds * 2_048
    states = torch.linspace(-1.5, 1.5, 31).unsqueeze(1)
    probabilities = torch.stack([policy.log_prob(states, torch.full((31, 1), choice)) for choice in range(3)], 1).exp()
    wanted = torch.cat([states, 0.0 * states, -states], 1).softmax(1)
    assert float((probabilities - wanted).abs().max()) < 0.1


def test_fitting_to_log_probabilities_descends_the_divergence_and_rests_at_the_prior() -> None:
    prior, states = as_policy(EXACT), torch.randn(40, 1)
    assert float(score_gradient(prior, prior, states, 1).abs().max()) < 1e-4
    other = Policy(PolicySpec(1, ActionSpace("continuous", (1,)), hidden=(4,)))
    (wanted,) = torch.autograd.grad(other(states).kl(prior(states)).mean(), other.log_std)
    found = torch.stack([score_gradient(prior, other, states, seed) for seed in range(400)])
    error = float(found.std() / len(found) ** 0.5)
    assert float(found.mean()) == pytest.approx(float(wanted), abs=4.0 * error)
    assert error < 0.05 * abs(float(wanted))


def score_gradient(prior: Policy, policy: Policy, states: Tensor, seed: int) -> Tensor:
    policy.requires_grad_(True)
    loss = score_loss(prior, policy, states, torch.Generator().manual_seed(seed))
    (found,) = torch.autograd.grad(loss, policy.log_std)
    return found


@pytest.mark.usefixtures("_near")
def test_log_probabilities_of_numbers_of_different_scales_are_fitted() -> None:
    """One number of the action is 60 times as wide as the other: so are its bounds, and its std."""
    stds = torch.tensor([0.2, 12.0])

    class Scales:
        def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
            return torch.distributions.Normal(0.0, stds).log_prob(actions).sum(-1)

    policy, _ = fit_clone(ScoredPrior(Scales()), tiny("TwoScales"), FEW)
    assert policy.std is not None
    torch.testing.assert_close(policy.std, stds, rtol=0.1, atol=0.0)


@pytest.mark.parametrize("std", [[[0.1], [0.2]], 0.0, math.nan])
def test_a_std_that_is_no_number_above_0_is_refused(std: Any) -> None:
    with pytest.raises(UsageError, match=r"^the std of steer is .*; it must be above 0, 1e-05 or more$"):
        MeanPrior(steer, std)


@pytest.mark.parametrize(
    ("prior", "options", "sentence"),
    [
        (steer, {}, "steer gives a mean and no std"),
        (steer, {"std": 0.1, "env": None}, "steer does not say which environment it is for; name one with --env"),
        (lambda observations: observations, {"std": 0.1, "ranks": 2}, "in this Python session alone, and 2 ranks"),
        (steer, {"std": 0.1, "init": "copy"}, "steer cannot be copied"),
        (MeanPrior(lambda seen: seen[0], 0.1), {}, r"gave means of shape \[1\]"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    prior: Any, options: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    settings = replace(FEW, ranks=options.pop("ranks", 1))
    with pytest.raises(UsageError, match=sentence):
        customized(prior, tmp_path / "run", settings, **options)
    assert not (tmp_path / "run").exists()


PROGRAM = """
def steer(observations):
    return -0.4 * observations

def wish(observations, actions, next_observations, info):
    return -(actions[:, 0] ** 2)
"""


def second_rank(words: list[str], seen: dict[str, str]) -> list[str]:
    """Be the other process of two runs, with two threads, and return what it writes; the first run must be refused."""
    os.environ.update(seen)
    torch.set_num_threads(2)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            with pytest.raises(SystemExit, match="^2$"):
                command_line([*words, "--out", "ranks"])
            command_line([*words, "--out", "torchrun"])
        return [file.seek(0) or file.read() for file in (out, err)]


@pytest.mark.skipif(not shares_memory(), reason="ranks of this machine need torchrun")
@pytest.mark.usefixtures("_elsewhere")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # of Python 3.12
def test_a_clone_under_torchrun_ends_in_the_bits_of_two_ranks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever number of threads a process has. All that `torchrun` does is to start processes with these names set."""
    Path("mine.py").write_text(PROGRAM)
    monkeypatch.setattr(cloning, "fit", lambda *given, **how: None)
    words = ["customize", "mine.py:steer", "--std", "0.3", "--addon", "mine.py:wish"]
    words += ["--env", tiny("LinearQuadratic"), "--omega", "0.3", "--alpha", "0.1", "--no-report"]
    words += ["--steps=1024", "--envs=16", "--n-steps=16", "--checkpoint-every=2", "--evaluation-episodes=2"]
    ours = answered(capsys, *words, "--ranks", "2", "--out", "ranks")
    assert ours["finished"]  # the second rank has imported the prior
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # a fork may wait for ever for threads of OpenMP
        second = pool.submit(second_rank, [*words, "--json"], meeting | {"RANK": "1"})
        for name, value in meeting.items() | {("RANK", "0")}:
            monkeypatch.setenv(name, value)
        code, _, refusal = typed(capsys, *words, "--json", "--out", "ranks")
        first = typed(capsys, *words, "--json", "--out", "torchrun")
        second_out, second_err = second.result(timeout=120)
    assert (code, first[0]) == (2, 0), first[2] + second_err
    assert json.loads(first[1])["finished"] is True
    assert second_out == ""
    said = refusal + first[2] + second_err
    assert said.count("runs as it is; a policy is fitted to it") == 1
    assert said.count("holds a run already") == 1  # the second rank is told, and does not wait for the first
    assert "RuntimeError" not in said
    for file in ("prior", "last_policy"):
        (one, header), (other, _) = (read(getattr(RunFolder(name), file), "policy") for name in ("ranks", "torchrun"))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one), file
        assert header["card"].get("clone_of") or header["card"]["prior_is"]


def test_a_constant_observation_that_later_moves_a_little_moves_the_action_a_little() -> None:
    policy = Policy(PolicySpec(2, ActionSpace("continuous", (1,)), hidden=(8,)))
    varying = torch.randn(1_000, 1, generator=torch.Generator().manual_seed(0))
    fit_normalizer(policy, torch.cat([varying, torch.full_like(varying, 1000.1)], 1))
    normalized = policy.normalizer(torch.tensor([[0.0, 1000.1], [0.0, 1000.6]]))
    assert normalized[:, 1].tolist() == pytest.approx([0.0, 0.5], abs=1e-3)
