"""A run that is resumed with another environment or add-on than it began with, or without what it wrote."""

import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import Log, same, weights
from tiny_envs import tiny

from repolicy.errors import FileError, UsageError
from repolicy.evaluation import evaluate
from repolicy.learning.training import train
from repolicy.objective import full, greedy
from repolicy.policies.file import save_policy
from repolicy.prepare.claiming import claim_folder
from repolicy.priors.opening import read_policy
from repolicy.runs.folder import RunFolder
from repolicy.runs.request import Request
from repolicy.runs.settings import Settings

SMALL = Settings(steps=64, envs=4, n_steps=4, minibatch=16, checkpoint_every=1)
ADDON = "def f(obs, action, after, info): return 1.0 * after[..., 0]\n"
ENV = "from tiny_envs import Mortal\nclass Mine(Mortal):\n    own = 1\n"


@pytest.fixture
def asked(tmp_path: Path) -> Request:
    (tmp_path / "r.py").write_text(ADDON)
    (tmp_path / "e.py").write_text(ENV)
    return Request(f"{tmp_path / 'e.py'}:Mine", full(0.1), SMALL, (f"{tmp_path / 'r.py'}:f",))


def resumed(asked: Request, folder: Path) -> list[str]:
    return claim_folder(asked, RunFolder(folder), True, None)


def test_a_changed_limit_is_refused_and_so_is_the_reward_of_which_a_share_is_kept(
    asked: Request, tmp_path: Path
) -> None:
    """The objective reads neither: its task is the add-on."""
    held = replace(asked, objective=greedy(0.1), limits=(f"{tmp_path / 'r.py'}:f<=1",))
    kept = replace(asked, objective=greedy(0.1), settings=replace(SMALL, keep=0.9), addons=(tiny("stay_near"),))
    held = replace(held, addons=kept.addons)
    for request in (held, kept):
        resumed(request, tmp_path / str(request.settings.keep))
    (tmp_path / "r.py").write_text(ADDON.replace("1.0", "1.01"))
    with pytest.raises(UsageError, match="limit f<=1 is not what it was when the run in"):
        resumed(held, tmp_path / "None")
    (tmp_path / "e.py").write_text(f"{ENV}    def step(self, a): o, r, *x = super().step(a); return o, r + 1, *x\n")
    with pytest.raises(UsageError, match="the reward of"):
        resumed(kept, tmp_path / "0.9")


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("r.py", ADDON.replace("1.0", "1.01"), r"add-on .*r\.py:f' is not what it was when the run in .* began"),
        ("e.py", f"{ENV}    def _look(self): return super()._look() + 1\n", r"environment .*e\.py:Mine' is not"),
        ("e.py", f"{ENV}    def step(self, a): o, r, *x = super().step(a); return o, r + 1, *x\n", "the reward of"),
        ("e.py", f"{ENV}    def step(self, a): raise ValueError\n", r"environment .*e\.py:Mine' is not what it"),
    ],
)
def test_what_has_changed_is_refused(asked: Request, tmp_path: Path, file: str, text: str, said: str) -> None:
    resumed(asked, tmp_path / "run")
    (tmp_path / file).write_text(text)
    with pytest.raises(UsageError, match=said):
        resumed(asked, tmp_path / "run")


def test_a_change_is_seen_wherever_the_zero_of_a_quantity_lies(asked: Request, tmp_path: Path) -> None:
    """Far from it, a change counts beside the quantity's span; less than a millionth of its size may be rounding."""
    (tmp_path / "r.py").write_text(ADDON.replace("return", "return 1e4 +"))
    resumed(asked, tmp_path / "run")
    (tmp_path / "r.py").write_text(ADDON.replace("return 1.0", "return 1e4 + 1.0001"))
    assert resumed(asked, tmp_path / "run") == []
    (tmp_path / "r.py").write_text(ADDON.replace("return 1.0", "return 1e4 + 1.5"))
    with pytest.raises(UsageError, match=r"add-on .* is not what it was"):
        resumed(asked, tmp_path / "run")


def test_what_never_repeats_itself_is_said_and_goes_on(asked: Request, tmp_path: Path) -> None:
    random = "import numpy as np\ndef f(obs, *_): return np.random.default_rng().random(obs.shape[:-1])\n"
    (tmp_path / "r.py").write_text(random)
    assert resumed(asked, tmp_path / "run") == []
    [said] = resumed(asked, tmp_path / "run")
    assert said.endswith("and they do not repeat themselves: no run of it ends in the same bits")


def test_a_folder_that_is_moved_while_it_trains_is_not_made_anew(asked: Request, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    claim_folder(asked, folder, False, None)
    shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    for write in (lambda: folder.save(1, {}, {"iteration": 3}), lambda: folder.log({}), folder.check_exists):
        with pytest.raises(FileError, match="was moved or removed while its run was at work"):
            write()
    assert not (tmp_path / "run").exists()


def test_what_draws_from_the_modules_own_generators_is_resumed_to_the_bit(asked: Request, tmp_path: Path) -> None:
    draws = "np.random.random(len(obs)) + random.random() + torch.rand(()).item()"
    (tmp_path / "r.py").write_text(f"import random, torch\nimport numpy as np\ndef f(obs, *_): return {draws}\n")
    settings = replace(SMALL, ranks=1, hidden=(8,), evaluation_episodes=2)
    whole, cut, log = tmp_path / "whole", tmp_path / "cut", Log()
    train(asked.env, full(0.1), whole, settings, addon=asked.addons)
    shutil.copytree(whole, cut)
    max((cut / "checkpoints").iterdir()).unlink()
    train(asked.env, full(0.1), cut, settings, addon=asked.addons, resume=True, callbacks=[log])
    assert same(weights(whole), weights(cut))
    assert not any("do not repeat" in said for said in log.said)

    saved = read_policy(cut / "policy.safetensors")  # as if it had stopped after its last checkpoint
    wanted = saved.card["nat_worth"]
    save_policy(
        cut / "policy.safetensors",
        saved.policy,
        {name: part for name, part in saved.card.items() if name != "nat_worth"},
    )
    train(asked.env, full(0.1), cut, settings, addon=asked.addons, resume=True)
    assert read_policy(cut / "policy.safetensors").card["nat_worth"] == wanted


def test_what_draws_from_the_modules_own_generators_repeats_before_and_after_training_and_leaves_them_as_they_were(
    tmp_path: Path,
) -> None:
    """Alpha is scaled from the reward in trial steps; an evaluation has the same seed in both calls."""
    luck = "np.random.normal() + random.random() + torch.rand(()).item()"
    lucky = f"    def step(self, a): o, r, *x = super().step(a); return o, {luck}, *x\n"
    (tmp_path / "e.py").write_text(f"import random, torch\nimport numpy as np\n{ENV}{lucky}")
    env, small = f"{tmp_path / 'e.py'}:Mine", replace(SMALL, ranks=1, hidden=(8,), evaluation_episodes=2)
    found = []
    for drawn_before in (0, 1):  # the seed of the call decides, and not what the program around has drawn
        for seed_module in (random.seed, np.random.seed, torch.manual_seed):
            seed_module(drawn_before)
        result = train(env, out=tmp_path / str(drawn_before), settings=small)
        alpha = read_policy(result.folder / "policy.safetensors").card["request"]["objective"]["alpha"]
        found.append([alpha, *(evaluate(result.policy, env, 4, seed=seed).basic.tolist() for seed in (0, 1))])
        left = [random.random(), np.random.random(), torch.rand(()).item()]
        for seed_module in (random.seed, np.random.seed, torch.manual_seed):
            seed_module(drawn_before)
        assert left == [random.random(), np.random.random(), torch.rand(()).item()]
    assert found[0] == found[1]
    assert found[0][1] != found[0][2]


def test_an_add_on_with_a_past_is_resumed_to_the_bit(tmp_path: Path) -> None:
    """Segments of 16 iterations, and episodes that are under way where a segment ends."""
    env, settings = tiny("LinearQuadratic"), replace(SMALL, steps=512, ranks=1, checkpoint_every=16, hidden=(8,))
    whole, cut, wishes = tmp_path / "whole", tmp_path / "cut", ("jerk=0.1", "action_rate=0.1")
    train(env, full(0.1), whole, settings, addon=wishes)
    shutil.copytree(whole, cut)
    max((cut / "checkpoints").iterdir()).unlink()  # as if it had stopped in its last segment
    train(env, full(0.1), cut, settings, addon=wishes, resume=True)
    assert same(weights(whole), weights(cut))
    train(env, full(0.1), tmp_path / "other", settings, addon=wishes[0])
    assert not same(weights(whole), weights(tmp_path / "other"))
