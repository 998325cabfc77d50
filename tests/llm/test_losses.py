"""The mathematics of Appendix B, against numbers worked by hand, exact enumeration, and each other."""

import math
from typing import Any

import pytest
import torch

from experiments.llm.gradients import list_responses, token_log_probs
from repolicy.llm import losses
from repolicy.objective import Objective, greedy, kl, residual

ROWS = {
    "chosen": torch.tensor([-1.0, -4.0], dtype=torch.float64),
    "prior_chosen": torch.tensor([-2.0, -5.0], dtype=torch.float64),
}


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


class TestImplicitReward:
    def test_by_hand(self) -> None:
        reward = losses.implicit_reward(residual(omega=0.3, alpha=0.2), ROWS["chosen"], ROWS["prior_chosen"])
        assert reward.tolist() == pytest.approx([0.2 * -1 + 0.3 * 2, 0.2 * -4 + 0.3 * 5], rel=1e-12)

    def test_without_omega_the_prior_is_not_read(self) -> None:
        none = losses.implicit_reward(greedy(0.2), ROWS["chosen"], None)
        infinite = torch.full((2,), -torch.inf, dtype=torch.float64)
        assert torch.equal(none, losses.implicit_reward(greedy(0.2), ROWS["chosen"], infinite))


class TestLabels:
    def test_by_hand(self) -> None:
        loss = losses.cross_entropy_dpo_loss(
            residual(0.3, 0.2), ROWS["chosen"], ROWS["prior_chosen"], torch.tensor([1, 0]), offset=0.1
        )
        logits = [0.2 * -1 + 0.3 * 2 + 0.1, 0.2 * -4 + 0.3 * 5 + 0.1]
        assert loss.tolist() == pytest.approx([softplus(-logits[0]), softplus(logits[1])], rel=1e-12)


class TestQAdapter:
    OBJECTIVE = residual(0.3, 0.5)

    def tokens(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        residual_values, scores = torch.randn(2, 4, 4, 7, generator=generator, dtype=torch.float64)
        log_prior = scores.log_softmax(-1)
        ids = torch.randint(0, 7, (4, 4, 1), generator=generator)
        mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]])
        log_policy = losses.q_adapter_log_probs(self.OBJECTIVE, residual_values, log_prior)
        value = 0.5 * ((residual_values + 0.3 * log_prior) / 0.5).logsumexp(-1)
        taken = residual_values.gather(-1, ids).squeeze(-1) - value
        return log_policy.gather(-1, ids).squeeze(-1), log_prior.gather(-1, ids).squeeze(-1), taken, mask

    def test_token_reward_is_q_minus_v(self) -> None:
        log_policy, log_prior, q_minus_v, _ = self.tokens()
        assert torch.allclose(losses.implicit_reward(self.OBJECTIVE, log_policy, log_prior), q_minus_v, atol=1e-14)

    def test_without_chi_it_is_decomposed_dpo(self) -> None:
        log_policy, log_prior, rewards, mask = self.tokens()
        policy, prior = ((x * mask).sum(1).chunk(2) for x in (log_policy, log_prior))
        chosen, rejected = map(losses.implicit_reward, [self.OBJECTIVE] * 2, policy, prior)
        by_sums = -torch.nn.functional.logsigmoid(chosen - rejected)
        by_tokens = losses.q_adapter_loss(*rewards.chunk(2), *mask.chunk(2))
        assert torch.allclose(by_tokens, by_sums, atol=1e-12)

    def test_chi_by_hand(self) -> None:
        _, _, rewards, mask = self.tokens()
        plain, with_chi = (losses.q_adapter_loss(*rewards.chunk(2), *mask.chunk(2), chi=chi) for chi in (0.0, 2.0))
        square = (rewards[mask > 0] ** 2).mean()
        assert torch.allclose(with_chi, plain + 2 * square)


class TestTokenReward:
    MASK = torch.tensor([[1, 1, 1], [1, 0, 0]])
    POLICY = torch.tensor([[-1.0, -2.0, -3.0], [-4.0, -torch.inf, torch.nan]])
    PRIOR = torch.tensor([[-0.5, -1.0, -1.5], [-2.0, torch.nan, -torch.inf]])

    def test_by_hand(self) -> None:
        rewards = losses.token_rewards(residual(0.3, 0.2), torch.tensor([1.0, 2.0]), self.POLICY, self.PRIOR, self.MASK)
        expected = [[0.2 - 0.15, 0.4 - 0.3, 1 + 0.6 - 0.45], [2 + 0.8 - 0.6, 0.0, 0.0]]
        assert torch.allclose(rewards, torch.tensor(expected))

    def test_returns_by_hand(self) -> None:
        rewards = torch.tensor([[1.0, 2.0, 4.0]])
        assert losses.returns_to_go(rewards, 0.5).tolist() == [[3.0, 4.0, 4.0]]
        assert losses.returns_to_go(rewards).tolist() == [[7.0, 6.0, 4.0]]
        assert losses.whole_returns(rewards).tolist() == [[7.0]]
        assert rewards.tolist() == [[1.0, 2.0, 4.0]]

    def test_leave_one_out_by_hand(self) -> None:
        mask = torch.tensor([[1, 1], [1, 0], [1, 1]])
        returns = torch.tensor([[1.0, 5.0], [2.0, 0.0], [6.0, 3.0]])
        expected = [[1 - 4.0, 5 - 3.0], [2 - 3.5, 0.0], [6 - 1.5, 3 - 5.0]]
        assert losses.leave_one_out(returns, mask, 3).tolist() == expected

    def test_the_longest_is_compared_with_all_others(self) -> None:
        mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]])  # the last is not judged
        whole = torch.tensor([[1.0], [2.0], [6.0], [100.0]])
        expected = [[1 - 4.0, 1 - 2.0, 1 - 4.0], [2 - 3.5, 2 - 1.0, 0.0], [6 - 1.5, 0.0, 0.0], [0.0] * 3]
        assert losses.leave_one_out(whole, mask, 4).tolist() == expected

    def test_the_only_judged_response_of_a_prompt_teaches_nothing(self) -> None:
        mask = torch.tensor([[1, 1], [0, 0], [1, 1], [1, 1]])  # of the first prompt, the second is not judged
        returns = torch.tensor([[5.0, 5.0], [1.0, 0.0], [2.0, 4.0], [6.0, 1.0]])
        assert losses.leave_one_out(returns, mask, 2).tolist() == [[0.0] * 2, [0.0] * 2, [-4.0, 3.0], [4.0, -3.0]]


class TestExactGradient:
    """Three letters and an end token, three steps, every response enumerated in double precision."""

    SIZE, STEPS = 4, 3

    def enumerated(self) -> tuple[list[list[int]], torch.Tensor, torch.Tensor]:
        """Every response, and the scores of a policy and of a prior, by step and last token."""
        generator = torch.Generator().manual_seed(1)
        shape = (2, self.STEPS, self.SIZE, self.SIZE)
        policy, prior = torch.randn(shape, generator=generator, dtype=torch.float64)
        return list_responses(self.SIZE, self.STEPS), policy.requires_grad_(), prior

    def exact(self, objective: Objective, reward: torch.Tensor, policy: torch.Tensor, prior: torch.Tensor) -> Any:
        """The expected return, through which a gradient flows in every way that it can."""
        total = reward + objective.omega * prior.sum(1) - objective.alpha * policy.sum(1)
        return (policy.sum(1).exp() * total).sum()

    @pytest.mark.parametrize("objective", [residual(0.3, 0.2), kl(0.2), greedy(0.4), residual(0.5, 0.0)])
    @pytest.mark.parametrize("returns", [losses.returns_to_go, losses.whole_returns])
    def test_baseline_leaves_the_gradient_unbiased(self, objective: Objective, returns: Any) -> None:
        """Every pair of responses, weighted by its chance: the mean of the group's update is the exact gradient."""
        rows, table, prior_table = self.enumerated()
        reward = torch.tensor([float(row.count(2)) - 0.5 * len(row) for row in rows], dtype=torch.float64)
        prior, _, mask = token_log_probs(prior_table, rows)
        policy, _, _ = token_log_probs(table, rows)
        old = policy.detach()
        chance = old.sum(1).exp()
        first, second = (x.flatten() for x in torch.meshgrid(*[torch.arange(len(rows))] * 2, indexing="ij"))
        pairs = torch.stack([first, second], 1).flatten()
        rewards = losses.token_rewards(objective, reward[pairs], old[pairs], prior[pairs], mask[pairs])
        advantage = losses.leave_one_out(returns(rewards), mask[pairs], group_size=2)
        weight = (chance[first] * chance[second]).repeat_interleave(2) / 2
        estimate = (weight.unsqueeze(1) * advantage * policy[pairs]).sum()
        (estimated,) = torch.autograd.grad(estimate, table, retain_graph=True)
        (exact,) = torch.autograd.grad(self.exact(objective, reward, policy, prior), table)
        assert torch.allclose(exact, estimated, atol=1e-12)
