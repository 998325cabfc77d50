"""Losses and token rewards of the paper's Appendix B, as pure functions of tensors. They do not depend on TRL.

All follow from one identity. At the optimum of the decoupled objective (Eq. 27 with separate coefficients),

    add-on(y|x)  =  alpha · log policy(y|x)  −  omega · log prior(y|x)  +  alpha · log Z(x)

so a policy *is* a model of the add-on reward, up to a constant per prompt. `cross_entropy_dpo_loss` fits that model to
labels (Eq. 32), `q_adapter_loss` to pairs by way of a Q-function, and TRL's own loss to pairs directly (Eq. 33).
`token_rewards` is for online methods. The paper has likelihoods to maximize; these are losses to minimize, one per row.

Shapes: `[B]` per response (a log-probability is then the sum over its tokens), `[B, T]` per token.
"""

import torch
from torch import Tensor
from torch.nn import functional

from repolicy.objective import Objective, reformulated


def implicit_reward(objective: Objective, log_policy: Tensor, log_prior: Tensor | None) -> Tensor:
    """Return the add-on reward that a policy implies: alpha · log policy − omega · log prior (Eq. 31, decoupled).

    It has the shape of the log-probabilities. `log_prior` may be None if omega is 0.
    """
    reward = objective.alpha * log_policy
    return reward if log_prior is None or not objective.omega else reward - objective.omega * log_prior


def q_adapter_log_probs(objective: Objective, residual: Tensor, log_prior: Tensor) -> Tensor:
    """Return log-probabilities of a residual Q-function's policy, π̂ ∝ exp((Q_R + omega · log prior) / alpha) (Eq. 3).

    Arguments and result are `[..., V]`, with one entry for every possible next token.
    """
    return ((residual + objective.omega * log_prior) / objective.alpha).log_softmax(-1)


def q_adapter_loss(
    chosen: Tensor,
    rejected: Tensor,
    chosen_mask: Tensor,
    rejected_mask: Tensor,
    chi: float = 0.0,
    tokens: Tensor | float | None = None,
) -> Tensor:
    """Return Q-Adapter's loss of pairs `[B]`: a preference loss on summed token rewards, plus chi · their mean square.

    chosen, rejected: token rewards `[B, T]`, the `implicit_reward` of `q_adapter_log_probs`, which is Q_R(s, a) − V(s).
        Summed at discount 1 they equal the sum of Q_R(s, a) − V(s′), up to V(prompt), which cancels in a pair.
    tokens: the divisor of the squares, if these pairs are a micro-batch; by default their own number of tokens.
    """
    chosen, rejected = _masked(chosen, chosen_mask), _masked(rejected, rejected_mask)
    preference = -functional.logsigmoid(chosen.sum(-1) - rejected.sum(-1))
    if not chi:
        return preference
    if tokens is None:
        tokens = (chosen_mask.sum() + rejected_mask.sum()).clamp(min=1)
    return preference + chi * (chosen.square().sum() + rejected.square().sum()) / tokens


def cross_entropy_dpo_loss(
    objective: Objective, log_policy: Tensor, log_prior: Tensor | None, label: Tensor, offset: Tensor | float = 0.0
) -> Tensor:
    """Return Cross-Entropy-DPO's losses of responses `[B]` (Eq. 32) with labels `[B]`, 1 for good and 0 for bad.

    `offset` models alpha · log Z(x) and the threshold between good and bad. In pairs both cancel. Here, without an
    offset, the optimum of the loss would need log-ratios that no normalized distribution has.
    """
    return functional.binary_cross_entropy_with_logits(
        implicit_reward(objective, log_policy, log_prior) + offset, label.to(log_policy.dtype), reduction="none"
    )


def token_rewards(
    objective: Objective, reward: Tensor, log_policy: Tensor, log_prior: Tensor | None, mask: Tensor
) -> Tensor:
    """Return add-on + omega · log prior − alpha · log policy at every token `[B, T]` (Eq. 27, separate coefficients).

    The add-on `reward` `[B]` is of a whole response, so it is added at the response's last token. `mask` is 1 at the
    response's tokens; elsewhere the result is 0.
    """
    position = torch.arange(mask.shape[1], device=mask.device)
    last = (position * (mask > 0)).amax(1, keepdim=True)
    addon = torch.where(position == last, reward.unsqueeze(1), 0.0).to(log_policy.dtype)
    return _masked(reformulated(objective, addon, log_prior, log_policy).total, mask)


def returns_to_go(rewards: Tensor, gamma: float = 1.0) -> Tensor:
    """Return discounted sums of rewards `[B, T]` from each token on, Σ_{t′ ≥ t} gamma^(t′−t) · r_t′ (Eq. 6)."""
    returns = rewards.clone()
    for t in range(rewards.shape[1] - 2, -1, -1):
        returns[:, t] += gamma * returns[:, t + 1]
    return returns


def leave_one_out(returns: Tensor, mask: Tensor, group_size: int) -> Tensor:
    """Subtract from returns the mean return of the *other* responses to the same prompt, and return `[B, T]`.

    returns: returns to go of tokens `[B, T]` (0 after the end), or of whole responses `[B, 1]`.
    mask: 1 at the tokens of responses `[B, T]`, 0 in all of a response that has no reward.
    Rows of a prompt are contiguous, `group_size` each. The mean is over the other responses that have a token at the
    same position, or, if there is none, over all others that have a reward. A row's own return is not in its baseline,
    so that the gradient stays unbiased. Where no other response of the prompt has a reward, the result is 0.
    """

    def mean_of_others(values: Tensor, weights: Tensor) -> Tensor:
        values = values * weights
        others = weights.sum(1, keepdim=True) - weights
        return (values.sum(1, keepdim=True) - values) / others.clamp(min=1)

    alive = (mask > 0).to(returns.dtype).view(-1, group_size, mask.shape[1])
    grouped = returns.view(-1, group_size, returns.shape[1])
    any_other_alive = alive.sum(1, keepdim=True) > alive
    has_reward = alive.amax(2, keepdim=True)
    baseline = torch.where(any_other_alive, mean_of_others(grouped, alive), mean_of_others(grouped, has_reward))
    alive = alive * (has_reward.sum(1, keepdim=True) > 1)
    return ((grouped - baseline) * alive).view(mask.shape)


def whole_returns(rewards: Tensor) -> Tensor:
    """Return the undiscounted sum of a response's token rewards, `[B, T]` to `[B, 1]`; it is the return of each token.

    Rewards before a token do not depend on it, so the expected gradient is that of `returns_to_go`. At the optimum the
    sum is alpha · log Z for *every* response to a prompt, so that its difference from the baseline has no noise.
    """
    return rewards.sum(1, keepdim=True)


def _masked(values: Tensor, mask: Tensor) -> Tensor:
    """Set values outside the mask to 0, also those that are infinite or NaN."""
    return torch.where(mask > 0, values, 0.0)
