"""A planner that is kept as a policy."""

from contextlib import closing

import numpy as np
import pytest
import torch
from known_optimum import as_policy, gain_and_std, optimum
from linear_world import augmented, planner
from tiny_envs import CONTROL, DYNAMICS, tiny

import repolicy
from repolicy.cli.main import main
from repolicy.envs.making import make_envs
from repolicy.planning.distilling import Lesson, distilled
from repolicy.priors.finding import find_policy
from repolicy.priors.opening import read_policy

FEW = ["--omega", "0.1", "--states", "0", "--samples", "4", "--horizon", "2", "--episodes", "1", "--steps", "20"]


def test_the_residual_optimum_is_kept():
    """The planner's action is the optimum's on average, and the policy is fitted to it in states of its own."""
    made = planner(samples=400, horizon=1, base="uniform")
    before = [parameter.clone() for parameter in made.prior.state_dict().values()]
    kept = distilled(made, tiny("LinearQuadratic"), 4000)
    assert gain_and_std(kept)[0] == pytest.approx(float(augmented(0.1).policy.gain), rel=0.03)
    assert kept.std == pytest.approx(made.prior.std)
    assert all(torch.equal(*pair) for pair in zip(before, made.prior.state_dict().values(), strict=True))


def test_who_acts_leads_the_way_and_the_planner_labels_it():
    made, student = planner(samples=50), as_policy(optimum(5.0, 0.1, 0.2))
    with closing(make_envs(tiny("LinearQuadratic"), 2, 0)) as envs:
        lesson = Lesson(made, envs)
        ways = {}
        for who in (student, None):
            labels = lesson.labels(4, who)
            seen, wanted = (each.reshape(4, 2).numpy() for each in (labels.observations, labels.actions))
            did = wanted if who is None else student(labels.observations).mode().detach().numpy().reshape(4, 2)
            assert seen[1:] == pytest.approx(DYNAMICS * seen[:-1] + CONTROL * did[:-1], abs=1e-5)
            ways[who] = np.abs(wanted - did).max()
    assert ways[None] < 0.1 < ways[student]


def test_its_file_is_a_policy_for_every_command(tmp_path, capsys):
    out = tmp_path / "kept"
    main(["plan", "halfcheetah", "--addon", "hind_leg=10", *FEW, "--distil", "64", "--out", str(out)])
    assert "fitted to 64 decisions" in capsys.readouterr().err
    saved = read_policy(out)
    assert saved.card["request"]["addons"] == ["hind_leg=10"]
    assert saved.prior is not None
    assert np.isfinite(repolicy.evaluate(out, episodes=1, longest=20).total).all()
    main(["evaluate", str(out), "--episodes", "1"])


def test_what_cannot_be_kept_is_refused_before_the_work(tmp_path, capsys):
    prior = tmp_path / "prior.safetensors"
    prior.write_bytes(find_policy("halfcheetah").read_bytes())
    for words, why in ((["--distil", "63"], "take 64 or more"), (["--distil", "64", "--out", str(prior)], "choose")):
        with pytest.raises(SystemExit) as stopped:
            main(["plan", str(prior), "--addon", "hind_leg=10", *FEW, *words])
        assert stopped.value.code == 2
        assert why in capsys.readouterr().err
    assert read_policy(prior).card["which"] == "best"
