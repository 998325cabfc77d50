"""Policies of ours as rsl_rl's actors, and the other way round."""

import warnings
from pathlib import Path

import pytest
import torch
from runner_envs import ACTIONS, OURS, SIZE
from runners import POLICY_ACTOR, checkpoint, log_prob_of, residual, runner, small_policy

from repolicy.cli.inspection import inspect
from repolicy.errors import UsageError
from repolicy.hosts.rsl_rl import from_repolicy, to_repolicy
from repolicy.priors.opening import open_policy


@pytest.mark.parametrize("std_type", ["scalar", "log"])
def test_a_policy_of_ours_becomes_an_actor_and_comes_back(std_type: str) -> None:
    policy = small_policy()
    actor = runner(distribution={"std_type": std_type}).alg.actor
    from_repolicy(policy, actor)
    observations, actions = torch.randn(40, SIZE), torch.randn(40, ACTIONS)
    found = log_prob_of(actor, observations, actions)
    torch.testing.assert_close(found, policy.log_prob(observations, actions), rtol=1e-5, atol=1e-5)
    back, far = to_repolicy(actor), 100.0 * observations
    torch.testing.assert_close(back.log_prob(observations, actions), found, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(back(far).mode(), actor({"policy": far}), rtol=1e-4, atol=1e-4)  # it bounds none


@pytest.mark.parametrize("std_type", ["scalar", "log"])
def test_an_actor_whose_std_is_cut_comes_as_it_acts(std_type: str) -> None:
    actor = runner(distribution={"std_type": std_type, "std_range": [0.6, 2.0]}).alg.actor
    observations, actions = torch.randn(40, SIZE), torch.randn(40, ACTIONS)
    back, found = to_repolicy(actor), log_prob_of(actor, observations, actions)
    torch.testing.assert_close(back.log_prob(observations, actions), found, rtol=1e-5, atol=1e-5)
    from_repolicy(back, actor)  # at the bound, and so not beyond it


@pytest.mark.parametrize("std_type", ["scalar", "log"])
@pytest.mark.parametrize("network", ["mlp", "lstm"])
def test_a_checkpoint_of_rsl_rl_4_is_a_prior(network: str, std_type: str, tmp_path: Path) -> None:
    """There the std had no distribution before its name."""
    trained = runner(network, distribution={"std_type": std_type, "init_std": 0.3})
    saved = trained.alg.save()
    saved["actor_state_dict"] = {
        name.replace("distribution.", "").replace("_param", ""): part
        for name, part in saved["actor_state_dict"].items()
    }
    torch.save(saved | {"iter": 0, "infos": None}, tmp_path / "model_0.pt")
    ours = runner(network, residual(str(tmp_path / "model_0.pt")), seed=1, distribution={"std_type": std_type}).alg
    observations, actions = torch.randn(40, SIZE), torch.randn(40, ACTIONS)
    wanted = log_prob_of(trained.alg.actor, observations, actions)
    with torch.no_grad():
        torch.testing.assert_close(ours.prior.score_batch({"policy": observations}, actions)[0], wanted)
    torch.testing.assert_close(log_prob_of(ours.actor, observations, actions), wanted)


def test_a_std_that_the_actor_would_cut_is_refused() -> None:
    with pytest.raises(UsageError, match=r"a std from 0\.\d+ to 0\.\d+, .* std_range of 0.9 to 2: widen it"):
        from_repolicy(small_policy(), runner(distribution={"std_range": [0.9, 2.0]}).alg.actor)


def test_an_actor_that_cannot_be_a_copy_is_told_which_can() -> None:
    """A policy of ours has its std beside its network, and this actor in it."""
    actor = {"distribution_cfg": {"class_name": "HeteroscedasticGaussianDistribution"}}
    prior = small_policy()
    with pytest.raises(UsageError, match="repolicy.hosts.rsl_rl:PolicyActor"):
        runner(algorithm=residual(prior), actor=actor)
    runner(algorithm=residual(prior), actor=actor | POLICY_ACTOR)


def test_notes_on_a_prior_that_actor_and_algorithm_open_are_printed_once(tmp_path: Path) -> None:
    path = str(checkpoint(tmp_path))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        runner(algorithm=residual(path), actor=POLICY_ACTOR)
    notes = [str(each.message) for each in caught if "activation" in str(each.message)]
    assert len(notes) == 1


def test_of_a_folder_the_newest_checkpoint_is_opened_and_named(tmp_path: Path) -> None:
    content = checkpoint(tmp_path).read_bytes()
    (tmp_path / "model_10.pt").write_bytes(content)
    for name in ("model_9.pt", "model_best.pt"):
        (tmp_path / name).write_bytes(b"not read")
    opened = open_policy(tmp_path)
    assert opened.path == tmp_path / "model_10.pt"
    assert opened.notes[0] == f"{tmp_path / 'model_10.pt'} is the newest checkpoint in {tmp_path}"
    assert open_policy(opened.path).notes == opened.notes[1:]


def test_an_actor_that_begins_as_a_prior_needs_one() -> None:
    with pytest.raises(UsageError, match="a PolicyActor begins as the algorithm's prior, and there is none: name it"):
        runner(algorithm=residual(), actor=POLICY_ACTOR)


def test_a_checkpoint_does_not_say_which_wishes_its_environment_paid(tmp_path: Path) -> None:
    runner(algorithm=residual(small_policy()), actor=POLICY_ACTOR).save(str(tmp_path / "model_0.pt"))
    facts = inspect(tmp_path / "model_0.pt")
    assert (facts["objective"], facts["add-ons"]) == ("unknown", "unknown")


@pytest.mark.usefixtures("_few_episodes")
def test_an_actor_of_images_alone_is_measured_and_compared(tmp_path: Path) -> None:
    sees = {"obs_groups": {"actor": ["camera"], "critic": ["policy", "camera"]}, "actor": {"obs_normalization": False}}
    runner("cnn", **sees).save(str(tmp_path / "prior.pt"))
    ours = runner("cnn", {"class_name": OURS, "prior": str(tmp_path / "prior.pt")}, **sees)
    ours.alg.train_mode()
    assert ours.alg.steering.objective.states == 0
    assert "prior with the mean action" in ours.alg.verdict()


@pytest.mark.parametrize("kind", ["Gaussian", "HeteroscedasticGaussian", "Beta"])
def test_a_priors_entropy_is_that_of_its_log_probabilities(kind: str, tmp_path: Path) -> None:
    actor = {"distribution_cfg": {"class_name": f"{kind}Distribution"}}
    trained = runner(actor=actor)
    trained.save(str(tmp_path / "prior.pt"))
    prior = runner(algorithm=residual(str(tmp_path / "prior.pt")), actor=actor).alg.prior
    observations = torch.randn(1, 3).expand(20_000, -1)
    with torch.no_grad():
        distribution = prior.distribution({"policy": observations})
        sampled = -distribution.log_prob(distribution.sample())
    assert float(distribution.entropy()[0]) == pytest.approx(float(sampled.mean()), abs=0.05)
