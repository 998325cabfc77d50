"""A range of weights inside rsl_rl: the engine's network, parts and draws, on the runner's rollouts."""

from pathlib import Path
from typing import Any

import pytest
import runners
import torch
from runner_envs import OURS, Drift
from runners import collected
from small import same, small_policy

from repolicy import Policy, load_policy
from repolicy.errors import UsageError
from repolicy.hosts.prior_reward import prior_reward
from repolicy.hosts.rsl_rl import to_repolicy
from repolicy.hosts.rsl_rl_dial import DialedPPO
from repolicy.policies.metadata import fingerprint
from repolicy.policies.modulated import ConditionedPolicy
from repolicy.ranges import Range
from repolicy.report.host_page import write_host_report

RANGE = Range(0.1, 3.0)


def prior() -> Policy:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return small_policy(hidden=(16, 16))


def runner(omega: Any = RANGE, seed: int = 0, steps: int = 6, **algorithm: Any) -> Any:
    named = {"class_name": OURS, "prior": prior(), "omega": omega, "alpha": 0.2, "critic_warmup": 0} | algorithm
    return runners.runner(algorithm=named, seed=seed, actor=runners.POLICY_ACTOR, num_steps_per_env=steps)


def standardized(advantages: torch.Tensor) -> torch.Tensor:
    return (advantages - advantages.mean()) / advantages.std()


@pytest.mark.parametrize("place", [-1.0, 0.3])
def test_where_all_episodes_stand_at_one_place_its_weight_is_a_number_as_any(place: float) -> None:
    """The critics know nothing: their last layers are 0. A time limit is worth what they say, so nothing."""
    dialed, number = runner(), runner(dialed_value(place))
    for each in (dialed, number):
        assert isinstance(each.alg, DialedPPO) == (each is dialed)
        last = each.alg.critic.mlp[-1].weight if each is number else each.alg.critic.mlp.weights[-1]
        last.data.zero_()
    number.alg.critic.mlp[-1].bias.data.zero_()
    dialed.alg.places = torch.full((8, 1), place)
    dialed.alg._draw = lambda count: torch.full((count, 8, 1), place)
    storages = []
    for each in (dialed, number):
        torch.manual_seed(1)
        storages.append(collected(each))
    one, other = storages
    assert torch.equal(one.actions, other.actions)
    torch.testing.assert_close(standardized(one.advantages), standardized(other.advantages), rtol=1e-4, atol=1e-4)
    told, plain = dialed.alg.method.iteration_metrics(), number.alg.method.iteration_metrics()
    assert "omega" not in told
    for name in ("reward_task", "reward_prior", "reward_entropy"):
        assert told[name] == pytest.approx(plain[name], rel=1e-5)


def test_a_time_limit_is_worth_what_the_critic_says_of_its_last_step_and_an_end_is_worth_nothing() -> None:
    """So what is left without the critic's part is paid, and does not depend on the critic."""
    left = []
    for size in (0.0, 1.0):
        started = runner(steps=40)
        step = started.env.step

        def half_are_ends(actions: torch.Tensor, step: Any = step) -> Any:
            *found, extras = step(actions)
            return *found, extras | {"time_outs": extras["time_outs"] & (torch.arange(8) < 4)}

        started.env.step = half_are_ends
        started.alg.method.credit = lambda *given: None  # which measures returns in a unit of their own
        torch.nn.init.constant_(started.alg.critic.mlp.weights[-1], size)
        torch.manual_seed(1)
        storage, cut = collected(started), started.alg._timed_out
        ended = (storage.dones.squeeze(-1) > 0) & ~cut
        assert cut.any()
        assert ended.any()
        assert bool(storage.values[cut].any()) == bool(size)
        paid = storage.returns - started.alg.gamma * storage.values
        left.append(torch.cat([paid[cut], storage.returns[ended]]))
    torch.testing.assert_close(*left, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("_few_episodes")
def test_the_verdict_says_which_weight_it_is_on(tmp_path: Path) -> None:
    started = runner(Range(0.1, 10.0))
    assert started.alg.verdict().startswith("at omega 1, the middle of the range:\nprior with the mean")
    started.save(str(tmp_path / "model_0.pt"))
    page, _ = write_host_report(tmp_path)
    assert "Its episodes are at omega 1, the middle of the range." in page.read_text()


def dialed_value(place: float) -> float:
    (dial,) = runner().alg.dials
    return float(dial.value(place))


def test_each_episode_stands_at_one_place_and_the_places_are_spread() -> None:
    started = runner(steps=40)
    storage, places = collected(started), started.alg.storage.observations["dial"].squeeze(-1)
    before, after, ended = places[:-1], places[1:], storage.dones.squeeze(-1)[:-1] > 0
    assert torch.equal(before[~ended], after[~ended])
    assert bool((before[ended] != after[ended]).any())
    assert len(torch.unique(((places[0] + 1.0) * 1.25).long().clamp(max=1))) == 2  # of eight strata, both halves


@pytest.mark.long
def test_it_begins_as_the_prior_everywhere_and_learns_to_differ() -> None:
    started, start = runner(steps=24), prior()
    observations, actions = torch.randn(50, 3), torch.randn(50, 2)
    begun = to_repolicy(started.alg.get_policy())
    assert isinstance(begun, ConditionedPolicy)
    for omega in RANGE:
        torch.testing.assert_close(
            begun.at(omega).log_prob(observations, actions), start.log_prob(observations, actions)
        )
    started.learn(40)
    actor: Any = started.alg.get_policy()
    made = to_repolicy(actor)
    assert isinstance(made, ConditionedPolicy)
    with torch.no_grad():  # where nothing else is paid, the optimum is the prior to the power of omega / alpha
        widths = [float(made.at(omega)(observations).log_std.mean()) for omega in (0.1, 0.5, 3.0)]
    assert widths[0] - 0.1 > widths[1] > widths[2] + 0.05
    with torch.no_grad():  # who asks without a place stands in the middle
        middle = made.at(dialed_value(0.0))(observations).mode()
        torch.testing.assert_close(actor({"policy": observations}), middle, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("omega", [RANGE, 0.5])
def test_a_checkpoint_goes_on_to_the_bit(tmp_path: Path, omega: Any) -> None:
    whole = runner(omega)
    whole.learn(2)
    whole.save(str(tmp_path / "model.pt"))
    saved, made = load_policy(tmp_path / "model.pt"), to_repolicy(whole.alg.get_policy())
    assert fingerprint(saved) == fingerprint(made)
    assert isinstance(saved, ConditionedPolicy) is (omega is RANGE)
    parted = runner(omega, seed=5)
    parted.load(str(tmp_path / "model.pt"))
    for each in (whole, parted):
        each.env, each.alg.places = Drift(seed=3), torch.linspace(-1, 1, 8).unsqueeze(-1)
        each.alg._draw = lambda count: torch.zeros(count, 8, 1)
        torch.manual_seed(2)
        each.learn(2)
    for one, other in ((whole.alg.actor, parted.alg.actor), (whole.alg.critic, parted.alg.critic)):
        assert same(one.state_dict().values(), other.state_dict().values())


def test_yaml_writes_a_range_as_a_word_and_alpha_is_a_third_of_its_low_end(capsys: Any) -> None:
    started = runner("0.3..3", alpha=None)
    started.learn(1)
    assert started.alg.steering.objective.omega == Range(0.3, 3.0)
    assert started.alg.steering.objective.alpha == pytest.approx(0.1)
    assert started.alg.steering.objective.states == 0.0
    assert "alpha is 0.1, a third of omega 0.3" in capsys.readouterr().out
    assert started.cfg["algorithm"]["rnd_cfg"] is None  # rsl_rl before 5.5 reads it, named or not


def test_what_a_range_cannot_have_is_a_sentence() -> None:
    with pytest.raises(UsageError, match=r"the actor's class_name must be repolicy.hosts.rsl_rl:PolicyActor"):
        runners.runner(algorithm={"class_name": OURS, "prior": prior(), "omega": RANGE})
    with pytest.raises(UsageError, match="a budget or a limit moves one"):
        runner(kl_budget=1.0)
    with pytest.raises(UsageError, match="leave rnd_cfg out"):
        runner(rnd_cfg={"num_outputs": 2})
    with pytest.raises(UsageError, match=r"omega is '3..x'; it must be .* or greater, or a range such as 0.03..3"):
        runner("3..x")
    with pytest.raises(UsageError, match=r"omega is a range, and this host takes one number"):
        prior_reward(prior(), RANGE, 0.1)


@pytest.mark.filterwarnings("ignore")  # of torch's exporters
def test_the_runner_exports_it_with_the_place_as_the_last_number(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    dialed, observations, places = runner(), torch.randn(1, 3), torch.full((1, 1), 0.7)
    dialed.learn(2)
    dialed.export_policy_to_jit(str(tmp_path))
    dialed.export_policy_to_onnx(str(tmp_path))
    rows = torch.cat([observations, places], -1)
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    with torch.no_grad():
        expected = dialed.alg.get_policy()({"policy": observations, "dial": places})
        other = dialed.alg.get_policy()({"policy": observations, "dial": -places})
        assert not torch.allclose(expected, other, atol=1e-5)
        torch.testing.assert_close(torch.jit.load(tmp_path / "policy.pt")(rows), expected)
    torch.testing.assert_close(torch.from_numpy(session.run(None, {"obs": rows.numpy()})[0]), expected)


def test_a_dial_goes_on_with_its_own_range_alone(tmp_path: Path) -> None:
    runner().save(str(tmp_path / "model.pt"))
    runner().load(str(tmp_path / "model.pt"))
    for omega, today in ((Range(0.2, 5.0), "omega from 0.2 to 5"), (0.3, "none")):
        with pytest.raises(UsageError, match=f"range is omega from 0.1 to 3, and today's {today}: name its own"):
            runner(omega).load(str(tmp_path / "model.pt"))
