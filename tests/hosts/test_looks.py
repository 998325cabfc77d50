"""A host looks again and again at what a nat is worth: each look is another chance to find what is none."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from repolicy.hosts import measuring
from repolicy.hosts.measuring import MAX_WORTH_EPISODES, HostEpisodes, PriorEpisodes
from repolicy.prepare.worth import WORTH_EPISODES


@pytest.mark.parametrize("count", [WORTH_EPISODES, WORTH_EPISODES // 2])
@pytest.mark.parametrize(
    ("noise_costs", "episodes", "is_known"),
    [
        (0.60, WORTH_EPISODES, True),  # 2.4 standard errors at the first look
        (0.45, 3 * WORTH_EPISODES, True),  # 1.8, then 2.5, then 3.1
        (0.36, MAX_WORTH_EPISODES, False),  # 1.4, then 2.0, then 2.5, then 2.9
        (-0.60, WORTH_EPISODES, False),  # a negative worth is none
    ],
)
def test_after_the_first_look_a_worth_counts_at_three_standard_errors(
    monkeypatch: pytest.MonkeyPatch, count: int, noise_costs: float, episodes: int, is_known: bool
) -> None:
    def run(envs: Any, actor: Any, sample: bool) -> HostEpisodes:
        ones, chance = torch.ones(count), torch.tensor([1.0, -1.0]).repeat(count // 2)
        basic = chance if sample else chance + noise_costs
        return HostEpisodes(basic, ones * torch.nan, ones, ones, ones, ones[:0], ones[:0])

    monkeypatch.setattr(measuring, "run_episodes", run)
    envs: Any = SimpleNamespace(count=count, wish_weight=1.0)
    found = PriorEpisodes(envs, None)
    worths = found.worths()
    assert bool(worths.known) == is_known
    assert sum(len(each.nats) for each in found.by_mean) == episodes
    assert worths.basic is not None
    assert worths.basic.value == pytest.approx(noise_costs / 2.0)
