"""Reward terms of Isaac Lab and mjlab: what they pay is what the engine pays for the same steps."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from repolicy.envs.addons import combined
from repolicy.envs.gaits import ActionRate, Jerk
from repolicy.envs.rollout import Past, Transitions
from repolicy.hosts.reward_terms import term
from repolicy.loading import load_object


class Robots(SimpleNamespace):
    """What a term sees of an environment; an environment of Isaac Lab can be a key, too."""

    __hash__ = object.__hash__


@pytest.mark.parametrize(("wish", "name"), [(ActionRate, "action_rate"), (Jerk, "jerk")])
def test_a_term_pays_what_the_engine_pays(wish: Any, name: str) -> None:
    actions = np.random.default_rng(0).normal(size=(12, 3, 2)).astype(np.float32)
    lengths = np.arange(1, 13)[:, None] - np.array([0, 4, 7])  # in the middle of an episode the first steps are, too
    lengths = np.where(lengths > 0, lengths, lengths + 20)
    pays, sent = term(wish, lambda env: (env.action_manager.action,)), torch.empty(3, 2)
    for _ in range(2):  # another environment begins anew
        env = Robots(action_manager=SimpleNamespace(action=sent), episode_length_buf=torch.zeros(3))
        found = []
        for t in range(12):
            sent.copy_(torch.from_numpy(actions[t]))  # in place, as both do it
            env.episode_length_buf = torch.from_numpy(lengths[t])
            found.append(pays(env))
        nothing = np.zeros((12, 3, 1), np.float32)
        expected = combined([name]).reward(Transitions(nothing, actions, nothing, {}, Past(lengths == 1, {})))
        np.testing.assert_allclose(torch.stack(found), expected, rtol=1e-5)
        assert np.count_nonzero(expected[0]) == 0


@partial(term, Jerk)
def jerk(env: Any) -> tuple[torch.Tensor]:
    return (env.action_manager.action,)


def test_a_term_is_found_by_the_name_that_isaac_lab_writes() -> None:
    assert load_object(f"{jerk.__module__}:{jerk.__qualname__}", "term") is jerk
