"""A policy for a range of ω′: at the start it is its prior, at each position an ordinary policy."""

import numpy as np
import pytest
import torch
from dialed_priors import SPECS, prior, shaken

from repolicy.errors import UsageError
from repolicy.policies.modulated import Conditioned, FilmMlp, polynomials
from repolicy.ranges import Dial

OMEGA = Dial("omega", 0.03, 3.0)
OMEGAS = (OMEGA,)


def seen(count: int = 50, place: float | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    places = torch.rand(count, 1, generator=generator) * 2 - 1 if place is None else torch.full((count, 1), place)
    return torch.cat([2.0 + 3.0 * torch.randn(count, 4, generator=generator), places], 1)


@torch.no_grad()
@pytest.mark.parametrize("kind", SPECS)
def test_at_the_start_it_is_the_prior_at_every_position_to_the_bit(kind: str) -> None:
    start, observations = prior(kind), seen()
    made = Conditioned.begun(start, OMEGAS)
    outputs = made.network(made.normalizer(observations))
    wanted = start.network(start.normalizer(observations[:, :-1]))
    assert torch.equal(outputs[:, : wanted.shape[1]], wanted)
    assert torch.equal(outputs[:, wanted.shape[1] :], torch.zeros(50, outputs.shape[1] - wanted.shape[1]))
    found, sure = made(observations), start(observations[:, :-1])
    assert torch.equal(found.mode(), sure.mode())
    if hasattr(sure, "log_std"):
        assert torch.equal(found.log_std.expand(50, 2), sure.log_std.expand(50, 2))  # type: ignore[attr-defined]
    for omega in (OMEGA.low, 0.5, OMEGA.high):
        assert all(torch.equal(made.at(omega).state_dict()[name], value) for name, value in start.state_dict().items())


@torch.no_grad()
@pytest.mark.parametrize("kind", SPECS)
def test_a_position_is_an_ordinary_policy_that_acts_alike(kind: str) -> None:
    made = Conditioned.begun(prior(kind), OMEGAS)
    shaken(made, 3)
    modes = []
    for omega in (OMEGA.low, 0.2, 1.1, OMEGA.high):
        observations = seen(place=OMEGA.place(omega))
        plain, actions = made.at(omega), made(observations).sample(torch.Generator().manual_seed(4))
        found = plain.log_prob(observations[:, :-1], actions)
        torch.testing.assert_close(found, made.log_prob(observations, actions), atol=1e-4, rtol=1e-4)
        modes.append(plain(observations[:, :-1]).mode())
        torch.testing.assert_close(modes[-1], made(observations).mode(), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(modes[0].float(), modes[-1].float(), atol=0.01)


@pytest.mark.parametrize("kind", SPECS)
def test_acting_scores_what_it_did(kind: str) -> None:
    """The snapshot in NumPy, whose scales are kept until a position changes."""
    made = Conditioned.begun(prior(kind), OMEGAS)
    shaken(made, 3)
    actor = made.actor(3, 50, torch.Generator().manual_seed(5))
    observations = [seen(place=0.3), seen(place=0.3), seen()]
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
    made = Conditioned.begun(prior("tanh"), OMEGAS)
    shaken(made, 3)
    with pytest.warns(UserWarning, match="omega is 30, and this policy was trained from 0.03 to 3: it acts as at 3"):
        found = made.at(30.0)
    assert torch.equal(found.network.weights[0], made.at(3.0).network.weights[0])
    for wrong in (0.0, -1.0, float("nan"), float("inf"), "1", True):
        with pytest.raises(UsageError, match="a number above 0: this policy's go from 0.03 to 3"):
            made.at(wrong)  # type: ignore[arg-type]


def test_the_dial_is_logarithmic() -> None:
    assert [OMEGA.place(omega) for omega in (0.03, 0.3, 3.0)] == pytest.approx([-1.0, 0.0, 1.0])
    assert OMEGA.spread(5) == pytest.approx([0.03, 0.0949, 0.3, 0.949, 3.0])
    assert OMEGA.value(torch.tensor([-1.0, 1.0]).double()).tolist() == pytest.approx([0.03, 3.0])
