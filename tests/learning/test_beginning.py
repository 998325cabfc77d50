"""An actor that begins as another policy than its prior."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from known_optimum import ALPHA, EXACT, SETTINGS, WISH, as_policy, of_both
from small_runs import Log
from tiny_envs import tiny

from repolicy.errors import UsageError
from repolicy.learning.training import customize
from repolicy.objective import kl, residual
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import save_policy
from repolicy.policies.modulated import ConditionedPolicy
from repolicy.policies.policy import Policy
from repolicy.prepare.checks import describe_weak_wish
from repolicy.priors.opening import read_policy
from repolicy.ranges import Dial
from repolicy.runs.folder import RunFolder
from repolicy.runs.request import Request, command_words
from repolicy.runs.settings import Settings

FOUND = of_both()


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    """What somebody found for the wish: the optimum of both tasks."""
    save_policy(tmp_path / "planned.safetensors", as_policy(FOUND), {})
    return tmp_path / "planned.safetensors"


def run(prior: Path, out: Path, **more: Any) -> Any:
    settings = replace(SETTINGS, steps=8_192, checkpoint_every=4, critic_warmup=more.pop("warmup", 0.1))
    return customize(prior, WISH, kl(ALPHA), out, settings, env=tiny("WithoutReward"), **more)


def test_the_actor_begins_as_another_policy_and_the_prior_scores_it(prior: Path, planned: Path, tmp_path: Path) -> None:
    """The actor rests while its critic warms up. The states are nearly 0, where the KL is that of the stds."""
    log = Log()
    found = run(prior, tmp_path / "run", init=planned, callbacks=[log], warmup=1.0)
    kept, ours = found.policy.state_dict(), read_policy(planned).policy.state_dict()
    assert all(torch.equal(kept[name], value) for name, value in ours.items())
    stds = (torch.distributions.Normal(0.0, float(each.covariance) ** 0.5) for each in (FOUND, EXACT))
    least = float(torch.distributions.kl_divergence(*stds))
    assert all(metrics["prior_kl"] > 0.9 * least > 0.01 for metrics in log.metrics)
    carried = read_policy(found.folder / "policy.safetensors").prior
    assert torch.equal(carried.state_dict()["log_std"], read_policy(prior).policy.state_dict()["log_std"])


def test_a_wish_that_weighs_too_little_is_told(prior: Path, tmp_path: Path) -> None:
    """With γ 0.99 and ω′ 0.35, a tenth of a nat in a hundred steps is 0.00035 a step."""
    request = Request(tiny("LinearQuadratic"), residual(0.35, 0.1), Settings(), (WISH,))
    [told] = describe_weak_wish(0.00034, request)
    assert told.endswith(
        "0.00034 a step, and a nat away from the prior costs 0.35; give it a larger weight, --addon NAME=WEIGHT"
    )
    followed = [replace(request, settings=Settings(**given)) for given in ({"keep": 0.9}, {"kl_budget": 1.0})]
    dialed = replace(request, objective=residual((0.35, 1.0), 0.1))
    assert not any(describe_weak_wish(0.00034, each) for each in (*followed, dialed))
    assert not describe_weak_wish(0.00036, request)
    assert not describe_weak_wish(0.0, request)  # so rare that no trial step shows it
    log = Log()
    settings = replace(SETTINGS, steps=SETTINGS.iteration_steps)
    customize(prior, f"{WISH}=1e-9", kl(ALPHA), tmp_path, settings, env=tiny("WithoutReward"), callbacks=[log])
    assert any("the wish weighs too little" in said for said in log.said)


def test_it_is_resumed_to_the_bit_from_the_copy_in_its_folder(prior: Path, planned: Path, tmp_path: Path) -> None:
    whole, cut = run(prior, tmp_path / "whole", init=planned), tmp_path / "cut"
    shutil.copytree(tmp_path / "whole", cut)
    shutil.rmtree(cut / "checkpoints")
    for file in (cut / "metrics.jsonl", planned):
        file.unlink()
    ours, theirs = (each.policy.state_dict() for each in (whole, run(prior, cut, resume=True)))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    with pytest.raises(UsageError, match="init was .* and is now"):
        run(prior, cut, resume=True, init=prior)
    assert "--init x" in " ".join(command_words(RunFolder(cut).load_request(), "prior", "x"))


def test_another_shape_or_a_dial_is_one_sentence(prior: Path, tmp_path: Path) -> None:
    other, policy = tmp_path / "other.safetensors", read_policy(prior).policy
    two = ActionSpace("continuous", (2,), (-1.0,) * 2, (1.0,) * 2)
    for made, why in (
        (
            replace(policy.spec, family="state_gaussian"),
            "its family .state_gaussian. and the prior's .gaussian. are not",
        ),
        (replace(policy.spec, observation_size=2), "its observation size .2. and"),
        (replace(policy.spec, actions=two), "its actions"),
        (ConditionedPolicy.from_prior(policy, [Dial("omega", 0.1, 1.0)]), "is one for every omega .* keeps one as a"),
    ):
        save_policy(other, made if isinstance(made, Policy) else Policy(made), {})
        with pytest.raises(UsageError, match=why):
            run(prior, tmp_path / "run", init=other)
        assert not (tmp_path / "run").exists()
