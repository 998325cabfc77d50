"""Continuous control: the closed form is the soft optimum, and the residual optimum is that of the summed cost."""

import contextlib
import io
import math
import re
from dataclasses import replace
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st
from linear_quadratic import LinearQuadratic, linear_quadratic_augmented, linear_quadratic_optimal, quadratic_cost
from random_problems import examples, largest, numbers, temperatures

TIGHT = 1e-10
costs = st.floats(0.1, 2.0)
omegas = st.floats(0.0, 3.0)


@st.composite
def scalars(draw):
    """x′ = a·x + b·u with cost q·x² + r·u²."""
    a, b = draw(st.floats(-1.2, 1.2)), draw(st.floats(0.1, 1.5))
    return LinearQuadratic(a, b, quadratic_cost(draw(costs), draw(costs)), discount=draw(st.floats(0.0, 0.95)))


@st.composite
def systems(draw):
    """Up to three states and two controls, stable or not."""
    n, m = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    return LinearQuadratic(
        draw(numbers(n, n, most=0.7)), draw(numbers(n, m)), positive(draw, n + m), discount=draw(st.floats(0.0, 0.9))
    )


def positive(draw, size):
    """A positive definite cost of state and control together, with cross terms."""
    root = draw(numbers(size, size, most=1.0))
    return root @ root.T + 0.1 * torch.eye(size, dtype=torch.float64)


def column(*values):
    return torch.tensor(values, dtype=torch.float64)[:, None]


@examples
@given(scalars(), temperatures, st.floats(-2.0, 2.0))
def test_it_satisfies_the_soft_bellman_equation(system, alpha, x):
    """V(x) = α log ∫ exp((reward + γ V(x′)) / α) du, and log π = (Q − V) / α: integrated numerically."""
    found = linear_quadratic_optimal(system, alpha)
    center, width = -found.policy.gain.item() * x, found.policy.covariance.item() ** 0.5
    u = (center + width * torch.linspace(-12, 12, 2001, dtype=torch.float64))[:, None]
    z = torch.cat([torch.full_like(u, x), u], -1)
    reward = system.constant - ((z @ system.cost) * z).sum(-1)
    q = reward + system.discount * found.value(x * system.dynamics.T + u @ system.control.T)
    v = alpha * (torch.logsumexp(q / alpha, 0) + math.log(24 * width / 2000))
    here = found.value(column(x))
    assert largest(v - here) < TIGHT * (1 + here.abs())
    log_policy = found.policy.log_prob(column(x), u)
    assert largest(alpha * log_policy - (q - here)) < TIGHT * (1 + q.abs().max())


@examples
@given(st.data(), systems(), temperatures, omegas, temperatures)
def test_the_residual_optimum_is_that_of_the_summed_cost(data, basic, alpha, omega, alpha_hat):
    """For matrices and any ω, α, α̂: prior, add-on cost and ω′ = ω·α alone give the optimum of ω·cost₁ + cost₂."""
    addon = replace(basic, cost=positive(data.draw, len(basic.cost)))
    prior = linear_quadratic_optimal(basic, alpha)
    wanted = linear_quadratic_optimal(replace(basic, cost=omega * basic.cost + addon.cost), alpha_hat)
    found = linear_quadratic_optimal(linear_quadratic_augmented(addon, prior.policy, omega * alpha), alpha_hat)
    assert largest(found.policy.gain - wanted.policy.gain) < TIGHT * (1 + wanted.policy.gain.abs().max())
    assert largest(found.policy.covariance - wanted.policy.covariance) < TIGHT
    assert largest(found.matrix - (wanted.matrix - omega * prior.matrix)) < TIGHT * (1 + wanted.matrix.abs().max())
    assert abs(found.constant - (wanted.constant - omega * prior.constant)) < TIGHT * (1 + abs(wanted.constant))


PAGE = Path(__file__).parents[2] / "docs" / "how-it-works.md"
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<shown>.*?)^```\n)?", re.MULTILINE | re.DOTALL)


def test_every_block_prints_what_the_page_shows():
    page = PAGE.read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(page))
    assert len(blocks) == page.count("```python") > 4
    assert sum(block["shown"] is not None for block in blocks) == page.count("```text")
    names: dict[str, object] = {}
    for block in blocks:
        line = page[: block.start("code")].count("\n")
        code = compile("\n" * line + block["code"], str(PAGE), "exec")  # so that a traceback points into the page
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, names)
        assert printed.getvalue() == (block["shown"] or ""), f"the block at line {line + 1} of {PAGE.name}"
