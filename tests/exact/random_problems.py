"""Random processes, policies and coefficients for the property-based tests."""

import numpy as np
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from repolicy.exact import MDP
from repolicy.objective import Objective

# The same examples in every run: a failure is a fact about the code, never about the day.
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
examples = settings(derandomize=True, deadline=None, database=None, max_examples=10, suppress_health_check=SLOW)

temperatures = st.floats(0.1, 3.0)
weights = st.floats(0.0, 3.0)
discounts = st.floats(0.0, 1.0)


def numbers(*shape: int, most: float = 2.0) -> st.SearchStrategy[Tensor]:
    """Arrays of that shape between −most and most."""
    return hnp.arrays(np.float64, shape, elements=st.floats(-most, most)).map(torch.from_numpy)


def probabilities(*shape: int) -> st.SearchStrategy[Tensor]:
    """Arrays whose last axis sums to one, often with zeros in it."""

    def normalized(counts: np.ndarray) -> Tensor:
        counts = counts + (counts.sum(-1, keepdims=True) == 0)
        return torch.from_numpy(counts / counts.sum(-1, keepdims=True))

    return hnp.arrays(np.float64, shape, elements=st.integers(0, 4).map(float)).map(normalized)


@st.composite
def mdps(
    draw: st.DrawFn, *, horizon: st.SearchStrategy[int | None], discount: st.SearchStrategy[float] = discounts
) -> MDP:
    """Processes of up to 3 states and 2 or 3 actions, with an add-on reward."""
    states, actions, steps = draw(st.integers(1, 3)), draw(st.integers(2, 3)), draw(horizon)
    return MDP(
        transitions=draw(probabilities(states, actions, states)),
        reward=draw(numbers(states, actions)),
        start=draw(probabilities(states)),
        discount=draw(discount) if steps is not None else draw(st.floats(0.0, 0.9)),
        horizon=steps,
        addon=draw(numbers(states, actions)),
    )


def objectives(**kwargs: st.SearchStrategy[float]) -> st.SearchStrategy[Objective]:
    """Any row of the table, not only the named ones; without a bonus unless told."""
    return st.builds(Objective, st.sampled_from(["basic", "addon", "both"]), omega=weights, alpha=weights, **kwargs)


def any_mdps() -> st.SearchStrategy[MDP]:
    """Processes of a finite or an infinite horizon."""
    return mdps(horizon=st.none() | st.integers(1, 6))


def short_mdps(discount: st.SearchStrategy[float] = discounts) -> st.SearchStrategy[MDP]:
    """Processes whose trajectories can be enumerated quickly: at most 729 of them."""
    return mdps(horizon=st.integers(1, 3), discount=discount)


def tables(mdp: MDP, *, timed: bool | None = None) -> st.SearchStrategy[Tensor]:
    """Logits (or weights) for a process, [S, A]; or [T, S, A], by chance or by `timed`, if its horizon is finite."""
    shape = (mdp.states, mdp.actions)
    stationary = numbers(*shape)
    if mdp.horizon is None or timed is False:
        return stationary
    each_step = numbers(mdp.horizon, *shape)
    return each_step if timed else stationary | each_step


def policies(mdp: MDP) -> st.SearchStrategy[Tensor]:
    """Log-probabilities of a random policy."""
    return tables(mdp).map(lambda logits: torch.log_softmax(logits, -1))


def largest(difference: Tensor) -> float:
    """The greatest absolute entry: what an identity is off by."""
    return difference.abs().max().item()


def state_distributions(mdp: MDP, log_policy: Tensor) -> Tensor:
    """Return where the policy is at each step of a finite horizon, [T, S]."""
    moves = torch.einsum("tsa,sap->tsp", mdp.log_probs("log_policy", log_policy).exp(), mdp.transitions)
    distributions = [mdp.start]
    for move in moves[:-1]:
        distributions.append(distributions[-1] @ move)
    return torch.stack(distributions)


def entropy_gradient(mdp: MDP, logits: Tensor, *, restore_discount: bool = False) -> Tensor:
    """Return E[Σ_t ∇H(π(·|s_t))], from the distribution of states at each step rather than from trajectories."""
    logits = logits.detach().clone().requires_grad_()
    log_policy = torch.log_softmax(mdp.per_step("logits", logits), -1)
    visits = state_distributions(mdp, log_policy.detach())
    entropy = -(log_policy.exp() * log_policy).sum(-1)
    steps = torch.arange(len(visits), dtype=torch.float64)
    weights = mdp.discount**steps if restore_discount else torch.ones_like(steps)
    (gradient,) = torch.autograd.grad((weights[:, None] * visits * entropy).sum(), logits)
    return gradient
