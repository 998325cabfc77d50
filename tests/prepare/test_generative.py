"""Generative policies: their noise is the action, N(0, I) the prior."""

import math
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from noise_worlds import AIM, COST, FEW, HERE, RIGHT, SKEWED, WALK, named, same, three
from quick_graphs import quick_graph
from tiny_envs import tiny
from torch import Tensor, nn

from repolicy.addons.addon import combine_addons
from repolicy.addons.trust import check_trust
from repolicy.cli.main import main as command_line
from repolicy.envs.making import make_envs
from repolicy.envs.rollout import Collector
from repolicy.errors import FileError, NumericError, RepolicyError, UsageError
from repolicy.evaluation import evaluate
from repolicy.learning.training import customize
from repolicy.many.comparing import compare
from repolicy.objective import greedy, residual
from repolicy.policies.export import onnx_runner
from repolicy.policies.file import SavedPolicy, save_policy
from repolicy.prepare import generative
from repolicy.prepare.decision import decide
from repolicy.prepare.generative import decoder_reference, noise_prior, open_start, standard_normal, with_noise_scale
from repolicy.priors import decoders
from repolicy.priors.decoders import load_decoder
from repolicy.ranges import Range
from repolicy.readers.reading import Options
from repolicy.runs.result import Result
from repolicy.runs.settings import Settings


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """What costs no training is told by few episodes."""
    monkeypatch.setattr(generative, "EPISODES", 2)


def test_noise_that_is_the_action_itself_ends_in_the_same_bits(tmp_path: Path) -> None:
    prior, runs = tmp_path / "prior.safetensors", {}
    save_policy(prior, standard_normal(2, 2), {})
    for env in (WALK, named("same")):
        result = customize(prior, RIGHT, residual(0.1, 0.1, 0.0), tmp_path / str(len(runs)), FEW, env=env)
        runs[env] = result.policy.state_dict()
    first, second = runs.values()
    assert not torch.equal(first["network.weights.1"], standard_normal(2, 2).state_dict()["network.weights.1"])
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.long
def test_the_noise_of_a_linear_decoder_ends_at_its_closed_form(tmp_path: Path) -> None:
    """N(0, I) · exp(reward / ω) of a reward that is quadratic in M·z is normal, too."""
    omega, prior = 0.5, tmp_path / "prior.safetensors"
    save_policy(prior, standard_normal(2, 2), {})
    settings = Settings(
        steps=31_000, ranks=1, envs=32, n_steps=16, minibatch=256, checkpoint_every=200, learning_rate=5e-3, gamma=0.0,
        schedule="linear", target_kl=None, evaluation_episodes=0, hidden=(8,), critic_warmup=0.05,
    )  # fmt: skip
    env = f"{HERE}:Spot?decoder={HERE}:skewed&noise=2&chunk=1"
    found = customize(prior, f"{HERE}:near", residual(omega, omega, 0.0), tmp_path / "run", settings, env=env).policy
    precision = np.eye(2) + SKEWED.T @ COST @ SKEWED / omega
    mean = np.linalg.solve(precision, SKEWED.T @ COST @ AIM / omega)
    with torch.no_grad():
        ours = found(torch.zeros(1, 2))
    # Of normal distributions with a std for each number, the best one has the diagonal of the precision.
    np.testing.assert_allclose(ours.mode()[0], mean, atol=0.02)
    np.testing.assert_allclose(ours.log_std.exp().ravel(), np.diag(precision) ** -0.5, atol=0.01)


def test_what_is_held_is_measured_with_sampled_noise_as_it_is_deployed(tmp_path: Path) -> None:
    few = replace(FEW, steps=16_384, n_steps=512, minibatch=4_096, critic_warmup=1.0)
    env, limit = f"{HERE}:Spot?decoder={HERE}:skewed&noise=2&chunk=1", f"{HERE}:near>=-9"
    run = customize(
        standard_normal(2, 2), f"{HERE}:first", residual(0.1, 0.1, 0.0), tmp_path, few, env=env, limits=limit
    )
    wanted = -0.5 * (AIM @ COST @ AIM + np.trace(COST @ SKEWED @ SKEWED.T))
    assert run.metrics()["limit_near>=-9"].mean() == pytest.approx(wanted, rel=0.06)


def test_a_chunk_is_its_actions_one_after_the_other_until_the_episode_ends() -> None:
    """Beside an environment that is given the same actions itself."""
    plain, envs = make_envs(WALK, 1, 5), make_envs(named("three", chunk=3), 1, 5)
    noise = np.random.default_rng(1).standard_normal((60, 1, 2)).astype(np.float32)
    seen, ends = [envs.reset(), plain.reset()], {"inside": 0, "with": 0}
    assert envs.actions.sizes == (2,)
    for given in noise:
        np.testing.assert_array_equal(*seen)
        step, paid = envs.step(given), 0.0
        for index, action in enumerate(three(seen[1], given).reshape(3, 1, 2)):
            own = plain.step(action)
            paid += own.rewards
            np.testing.assert_array_equal(step.chunk.final[index], own.final)
            np.testing.assert_array_equal(step.chunk.info["first"][index], own.info["first"])
            if own.terminated or own.truncated:
                ends["with" if index == 2 else "inside"] += 1
                break
        assert step.chunk.counts[:, 0].sum() == index + 1
        assert (step.rewards, step.terminated, step.truncated) == (paid, own.terminated, own.truncated)
        np.testing.assert_array_equal(step.final, own.final)
        if own.terminated or own.truncated:  # the two draw other beginnings from here on
            envs, plain = (make_envs(each.name, 1, len(noise)) for each in (envs, plain))
            seen = [envs.reset(), plain.reset()]
        else:
            seen = [step.observations, own.observations]
    assert min(ends.values()) > 2


def test_an_addon_is_paid_for_each_step_of_a_decision() -> None:
    addon, envs = combine_addons([RIGHT]), make_envs(named("three", chunk=3), 4, 0)
    rollout = Collector(envs, 20, torch.Generator()).collect(standard_normal(2, 2))
    counts = np.stack([chunk.counts for chunk in rollout.chunks])
    assert 0 < (~counts).sum() < counts.size / 2
    paid = rollout.per_decision(addon.reward(rollout.transitions))
    means = rollout.per_decision(addon.metric_values(rollout.transitions), mean=True)
    summed = 0.0
    for (t, n), found in np.ndenumerate(paid):
        chunk, lasts = rollout.chunks[t], counts[t, :, n].sum()  # the steps that count are the first ones
        actions, firsts = chunk.actions[:lasts, n], chunk.info["first"][:lasts, n]
        assert found == pytest.approx((actions[:, 0] + firsts).sum())
        summed += actions[:, 1].sum()
    assert means.mean() == pytest.approx(summed / counts.sum())  # of all steps, also where decisions have fewer


def test_after_an_end_inside_a_chunk_the_next_episode_has_all_of_its_steps() -> None:
    envs = make_envs(named("three", chunk=3), 4, 0)
    rollout = Collector(envs, 60, torch.Generator()).collect(with_noise_scale(standard_normal(2, 2), 0.1))
    steps, cut = np.zeros(4), list[float]()
    for chunk, truncated, terminated in zip(rollout.chunks, rollout.truncated, rollout.terminated, strict=True):
        steps += chunk.counts.sum(0)
        cut += steps[truncated].tolist()
        steps[truncated | terminated] = 0
    assert len(cut) > 20
    assert set(cut) == {7}  # the environment's own limit, which three steps at a time do not meet


class Flow(nn.Module):
    def forward(self, seen: Tensor, noise: Tensor) -> Tensor:
        return torch.tanh(noise.flatten(1) + seen.sum(1, keepdim=True))


def test_a_graph_and_torchscript_decode_as_the_module_does(tmp_path: Path) -> None:
    flow, noise, seen = Flow(), torch.randn(5, 2, 3), torch.randn(5, 4)
    (tmp_path / "flow.onnx").write_bytes(quick_graph(flow, (seen, noise)))
    with warnings.catch_warnings(action="ignore"):
        torch.jit.trace(flow, (seen, noise.flatten(1))).save(str(tmp_path / "flow.pt"))
    for file in ("flow.onnx", "flow.pt"):
        found = load_decoder(tmp_path / file, 6, 1)(seen.numpy(), noise.flatten(1).numpy())
        np.testing.assert_allclose(found, flow(seen, noise).numpy(), atol=1e-6)
    double = nn.Bilinear(4, 6, 3).double()
    with warnings.catch_warnings(action="ignore"):
        torch.jit.trace(double, (seen.double(), noise.flatten(1).double())).save(str(tmp_path / "double.pt"))
    found = load_decoder(tmp_path / "double.pt", 6, 1)(seen.numpy(), noise.flatten(1).numpy())
    np.testing.assert_allclose(found, double(seen.double(), noise.flatten(1).double()).detach(), atol=1e-6)
    with pytest.raises(UsageError, match="--trust"):
        evaluate(tmp_path / "flow.pt", f"Pendulum-v1?decoder={tmp_path / 'flow.pt'}&noise=6&chunk=1")
    with pytest.raises(UsageError, match=r"takes 6 numbers of noise \(noise \[2, 3\]\), not 5: --noise 6$"):
        load_decoder(tmp_path / "flow.onnx", 5, 1)


class Shifted(nn.Module):
    """Its actions are the noise, of this sign, beside a share of what is seen."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self.sign = sign

    def forward(self, seen: Tensor, noise: Tensor) -> Tensor:
        return self.sign * noise - 0.1 * seen


def shifted(sign: float) -> bytes:
    return quick_graph(Shifted(sign), (torch.zeros(2, 2), torch.zeros(2, 2)))


@pytest.fixture
def flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A decoder's graph."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "flow_noise.onnx").write_bytes(shifted(1.0))
    return tmp_path / "flow_noise.onnx"


def customized(flow: Path, out: Path, omega: float | Range = 0.1) -> Result:
    return customize(flow, RIGHT, residual(omega, 0.1, 0.0), out, FEW, env=WALK, noise=2)


def test_a_policys_file_needs_no_other_to_decode(flow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where its decoder is gone, nor where another has its name."""
    moved, out = tmp_path / "moved.safetensors", tmp_path / "run"
    result = customized(flow, out)
    before = evaluate(result.folder, episodes=20, trust=True).basic
    moved.write_bytes((out / "policy.safetensors").read_bytes())
    flow.write_bytes(shifted(-1.0))
    with pytest.raises(UsageError, match="began with .* as it was then"):
        customize(flow, RIGHT, residual(0.1, 0.1, 0.0), out, FEW, noise=2, resume=True, trust=True)
    np.testing.assert_array_equal(evaluate(moved, episodes=20, trust=True).basic, before)
    flow.unlink()
    np.testing.assert_array_equal(evaluate(moved, episodes=20, trust=True).basic, before)
    monkeypatch.setattr(decoders, "onnx_graph", quick_graph)
    command_line(["export", str(moved), "--trust", "--out", str(tmp_path / "whole.onnx")])
    seen, noise = np.random.default_rng(0).standard_normal((2, 5, 2)).astype(np.float32)
    with torch.no_grad():
        found = result.policy(torch.from_numpy(seen))
        chosen = found.mode() + found.log_std.exp() * torch.from_numpy(noise)
    decoded = onnx_runner((tmp_path / "whole.onnx").read_bytes())(seen, noise)
    np.testing.assert_allclose(decoded, chosen.numpy() - 0.1 * seen, atol=1e-5)


def test_a_decoder_is_a_policy_where_it_decodes(flow: Path, tmp_path: Path) -> None:
    """N(0, I) over its noise, beside which what was customized from it can be compared."""
    again, out = tmp_path / "again.onnx", tmp_path / "run"
    env, normal = f"{WALK}?decoder={flow}&noise=2&chunk=1", standard_normal(2, 2)
    np.testing.assert_array_equal(evaluate(flow, env, 20).basic, evaluate(normal, env, 20).basic)
    sampled = evaluate(str(flow), env, 200, deterministic=False, prior=normal).columns
    assert sampled["noise_square"].mean == pytest.approx(1.0, abs=0.15)
    assert sampled["kl_a_step"].mean == pytest.approx(0.0, abs=1e-3)  # the prior's std is 1.0 in single precision
    customized(flow, out)
    again.write_bytes(flow.read_bytes())
    np.testing.assert_array_equal(evaluate(again, env, 20).basic, evaluate(normal, env, 20).basic)
    found = compare(again, out, episodes=25, trust=True)
    assert [*found.rows] == ["sampled", "mean"]
    still = next(row for row in found.rows["mean"] if row.name == "basic_reward")
    assert still.old == pytest.approx(evaluate(normal, env, 25).basic.mean(), abs=1e-6)
    again.write_bytes(shifted(-1.0))
    for given, options in ((again, None), (flow, Options(std=0.2))):
        with pytest.raises(RepolicyError, match="generative policy"):
            compare(given, out, episodes=25, options=options, trust=True)


def test_what_does_without_noise_or_takes_no_dial_says_so(
    flow: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = str(customized(flow, tmp_path / "run", Range(0.1, 1.0)).folder), str(tmp_path / "out.onnx")
    kept, person = str(tmp_path / "kept.safetensors"), tmp_path / "person.py"
    person.write_text("def act(seen, proposed):\n    return proposed\n\nact.wants = act\n")
    command_line(["dial", run, "--trust", "--at", "0.3", "--out", kept])
    for words, why in (
        (["export", run, "--trust"], "one for every omega"),
        (["plan", kept, "--trust", "--addon", RIGHT], "a planner needs the environment's own actions"),
        (["takeover", kept, "--trust", "--person", f"{person}:act"], "a take-over needs the environment's own"),
        (["ask", kept, "--trust"], "a pair of clips needs the environment's own actions"),
    ):
        with pytest.raises(SystemExit) as ended:
            command_line([*words, "--out", out])
        assert (ended.value.code, why in capsys.readouterr().err) == (2, True), why


def test_a_resumed_run_stays_with_its_decoder_and_the_sizes_of_its_noise(tmp_path: Path) -> None:
    run = customize(f"{HERE}:three", RIGHT, residual(0.1, 0.1, 0.0), tmp_path, FEW, env=WALK, noise=2, chunk=3)
    again = {"out": tmp_path, "resume": True, "trust": True}
    wanted = run.policy.state_dict()
    assert all(map(torch.equal, customize(f"{HERE}:three", **again).policy.state_dict().values(), wanted.values()))
    with pytest.raises(UsageError, match="as it was then, noise of 2 and a chunk of 3: name these, or another --out"):
        customize(f"{HERE}:three", noise=4, **again)
    with pytest.raises(UsageError, match=f"began with {HERE}:three as it was then"):
        customize(f"{HERE}:same", noise=2, chunk=3, **again)


def test_an_object_tells_its_own_sizes(tmp_path: Path) -> None:
    _, name = open_start(f"{HERE}:Telling", WALK, FEW, 0, 1, True, tmp_path / "prior.safetensors", False)
    assert name == f"{WALK}?decoder={HERE}:Telling&noise=2&chunk=3"
    with pytest.raises(UsageError, match="gives 6 numbers at a time, .* 8 for --chunk 4"):  # what the user names counts
        open_start(f"{HERE}:Telling", WALK, FEW, 0, 4, True, tmp_path / "prior.safetensors", False)


def test_what_customizing_reads_and_training_does_not_is_no_matter_of_the_noise(tmp_path: Path) -> None:
    copy, few = tmp_path / "prior.safetensors", {"seed": 3, "desired_kl": 0.02, "critic_explains": 0.5}
    start, _ = open_start(f"{HERE}:same", WALK, few, 2, 1, True, copy, False)
    as_named, _ = open_start(f"{HERE}:same", WALK, Settings(seed=3), 2, 1, True, copy, False)
    assert start.content == as_named.content
    with pytest.raises(UsageError, match="N.0, I., which is copied: leave --init clone out"):
        open_start(f"{HERE}:same", WALK, few, 2, 1, True, copy, False, init="clone")


@pytest.mark.parametrize("observe", ["state", "privileged"])
def test_a_decoder_gets_the_parts_of_the_observation_that_are_named(observe: str, tmp_path: Path) -> None:
    """Two numbers are the state, three are privileged; the decoder acts by the sum of what it is shown."""
    for resume in (False, True):
        settings = FEW if not resume else {}
        result = customize(
            f"{HERE}:one", f"{tiny('stay_near')}=0", residual(0.1, 0.1, 0.0), tmp_path / "run", settings,
            env=tiny("Groups"), observe=observe if not resume else "", noise=1, sparse=True, resume=resume,
        )  # fmt: skip
        assert result.policy.observation_size == (3 if observe == "privileged" else 2)


def test_a_large_decoder_stays_outside_and_is_known_by_its_sum(
    flow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoders, "MAX_SIZE", 10)
    out = customized(flow, tmp_path / "run").folder
    evaluate(out, episodes=2, trust=True)
    flow.write_bytes(shifted(-1.0))
    with pytest.raises(FileError, match="is another file now"):
        evaluate(out, episodes=2, trust=True)
    flow.unlink()
    with pytest.raises(FileError, match="is not there"):
        evaluate(out, episodes=2, trust=True)


def test_what_is_no_function_of_its_inputs_is_refused() -> None:
    for decoder, chunk, error, words in (
        ("at_random", 1, UsageError, "draws numbers of its own"),
        ("broken", 1, NumericError, "not finite"),
        ("turned", 1, UsageError, "not one each"),
        ("same", 2, UsageError, "gives 2 numbers at a time, .* 4 for --chunk 2"),
    ):
        with pytest.raises(error, match=words):
            noise_prior(f"{HERE}:{decoder}", 2, chunk, WALK, FEW)
    with pytest.raises(UsageError, match=r"write it into a file and name file\.py:decode"):
        decoder_reference(SimpleNamespace(decode=same))
    with pytest.raises(UsageError, match="--noise is 0"):
        load_decoder(f"{HERE}:same", 0, 1)
    with pytest.raises(FileError, match="hopper is no file of a decoder; .* leave out --noise"):
        load_decoder("hopper", 2, 1)
    with pytest.raises(UsageError, match="hopper is named as a generative policy: .* leave out --noise"):
        open_start("hopper", "", None, 2, 1, False, Path("copy"), False)
    with pytest.raises(UsageError, match="--trust"):
        check_trust("card", False, env="HalfCheetah-v4?decoder=flow.onnx&noise=2&chunk=1")


def test_an_observation_that_was_constant_at_first_does_not_explode_later() -> None:
    policy, _ = noise_prior(f"{HERE}:skewed", 2, 1, f"{HERE}:Spot", FEW)
    torch.testing.assert_close(policy.normalizer(torch.tensor([0.0, 0.01])), torch.tensor([0.0, 0.01]))


def test_the_prior_is_standard_normal_and_its_weights_move_together() -> None:
    policy, env = noise_prior(f"{HERE}:three", 2, 3, WALK, FEW)
    found = policy(torch.randn(5, 2))
    assert torch.equal(found.mean, torch.zeros(5, 2))
    assert torch.allclose(found.log_std.exp(), torch.ones(2), atol=1e-6)
    assert torch.allclose(with_noise_scale(policy, 0.5)(torch.zeros(2)).log_std.exp(), torch.tensor(0.5))
    assert policy.normalizer.count > 1000
    spread = evaluate(policy, env, 2000, addon=RIGHT, deterministic=False).columns["addon_reward"].std
    decided = decide(residual(), SavedPolicy(policy, None, {}), env, (RIGHT,), FEW)
    assert decided.objective.omega == decided.objective.alpha
    assert decided.objective.states == 0.0
    assert 1.0 < decided.settings.kl_budget < 5.0  # five nats an episode, and some decisions make one
    assert decided.objective.omega == pytest.approx(spread / math.sqrt(2.0 * 5.0), rel=0.15)  # with a few episodes
    without_prior = decide(greedy(), SavedPolicy(policy, None, {}), env, (RIGHT,), FEW).objective
    assert without_prior.alpha < decided.objective.alpha / 10  # else entropy outweighs the wish
    assert decide(residual(0.3), SavedPolicy(policy, None, {}), env, (RIGHT,), FEW).objective.alpha == 0.3
    dial = decide(residual(Range(0.1, 3.0)), SavedPolicy(policy, None, {}), env, (RIGHT,), FEW).objective
    assert dial.at({"omega": 0.7}).alpha == 0.7


def test_an_evaluation_says_how_unlike_the_prior_the_noise_is() -> None:
    """Noise of half the scale: its square is a quarter, and its KL is known."""
    prior, env = noise_prior(f"{HERE}:three", 2, 3, WALK, FEW)
    found = evaluate(with_noise_scale(prior, 0.5), env, 400, prior=prior, deterministic=False).columns
    assert found["noise_square"].mean == pytest.approx(0.25, rel=0.05)
    apart = 2.0 * (math.log(2.0) + 0.5 * (0.25 - 1.0))  # nats a decision, of two numbers
    assert found["kl_a_step"].mean == pytest.approx(apart, rel=0.15)
    decisions = found["length"].mean
    assert found["kl_an_episode"].mean == pytest.approx(found["kl_a_step"].mean * decisions, rel=1e-9)
    assert evaluate(prior, env, 4, prior=prior).columns["noise_square"].mean == pytest.approx(0.0, abs=1e-6)
