"""The paper's Appendix B in pure functions: what a preference, a label or a token is worth.

Everything rests on one identity. At the optimum of the decoupled objective (Eq. 27 with its coefficients apart)

    add-on(y|x)  =  alpha · log policy(y|x)  −  omega · log prior(y|x)  +  alpha · log Z(x)

so a policy *is* a model of the add-on reward, up to a number per prompt. The losses below fit that model to labels
(Eq. 32) or to pairs with a Q-function in between (to pairs alone, Eq. 33, TRL's own loss does it); the token reward
hands the same three terms to an online method. The paper prints likelihoods to maximize; these are losses to minimize,
one number a row.

Shapes: `[B]` a response (its log-probability is the sum over its tokens), `[B, T]` a token. No function here knows TRL.
"""

import torch
from torch import Tensor
from torch.nn import functional

from repolicy.objective import Objective, reformulated


def implicit_reward(objective: Objective, log_policy: Tensor, log_prior: Tensor | None) -> Tensor:
    """Return the add-on reward that a policy stands for: alpha · log policy − omega · log prior (Eq. 31, decoupled).

    Of the shape of the log-probabilities. `log_prior` may be None where omega is 0.
    """
    reward = objective.alpha * log_policy
    return reward if log_prior is None or not objective.omega else reward - objective.omega * log_prior


# A loss on pairs ------------------------------------------------------------------------------------------------------


def q_adapter_log_probs(objective: Objective, residual: Tensor, log_prior: Tensor) -> Tensor:
    """Return the policy of a residual Q-function, π̂ ∝ exp((Q_R + omega · log prior) / alpha), behind Eq. 3.

    `[..., V]` to `[..., V]`: one number for every token that could come next.
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
    """Return Q-Adapter's loss `[B]` of token rewards `[B, T]`: a preference of sums, and chi · mean of the squares.

    The rewards are `implicit_reward` of `q_adapter_log_probs` at the tokens: Q_R(s, a) − V(s), which at discount 1
    sums to Q_R(s, a) − V(s′) but for V(prompt), and that cancels in the pair. With chi = 0 this is Decomposed-DPO.
    `tokens` is what the squares are divided by: of these pairs, unless they are a part of a larger batch.
    """
    chosen, rejected = _masked(chosen, chosen_mask), _masked(rejected, rejected_mask)
    preference = -functional.logsigmoid(chosen.sum(-1) - rejected.sum(-1))
    if not chi:
        return preference
    if tokens is None:
        tokens = (chosen_mask.sum() + rejected_mask.sum()).clamp(min=1)
    return preference + chi * (chosen.square().sum() + rejected.square().sum()) / tokens


# A loss on labels -----------------------------------------------------------------------------------------------------


def cross_entropy_dpo_loss(
    objective: Objective, log_policy: Tensor, log_prior: Tensor | None, label: Tensor, offset: Tensor | float = 0.0
) -> Tensor:
    """Return losses `[B]` of Cross-Entropy-DPO (Eq. 32): each response has a label of its own, 1 good or 0 bad.

    `offset` stands for alpha · log Z(x) and for the threshold between good and bad. In a pair both cancel; here they do
    not, and without them the loss asks the policy for log-ratios that no normalized distribution can have.
    """
    return functional.binary_cross_entropy_with_logits(
        implicit_reward(objective, log_policy, log_prior) + offset, label.to(log_policy.dtype), reduction="none"
    )


# The online reward ----------------------------------------------------------------------------------------------------


def token_rewards(
    objective: Objective, reward: Tensor, log_policy: Tensor, log_prior: Tensor | None, mask: Tensor
) -> Tensor:
    """Return add-on + omega · log prior − alpha · log policy at every token `[B, T]` (Eq. 27, its coefficients apart).

    The add-on reward `[B]` judges a whole response, so it is paid at the response's last token. `mask` is 1 at the
    response's tokens; elsewhere the reward is 0.
    """
    position = torch.arange(mask.shape[1], device=mask.device)
    last = (position * (mask > 0)).amax(1, keepdim=True)
    task = torch.where(position == last, reward.unsqueeze(1), 0.0).to(log_policy.dtype)
    return _masked(reformulated(objective, task, log_prior, log_policy).total, mask)


def returns_to_go(rewards: Tensor, gamma: float = 1.0) -> Tensor:
    """Return the sum of rewards `[B, T]` from each token on, Σ_{t′ ≥ t} gamma^(t′−t) · r_t′ (Eq. 6), `[B, T]`."""
    if gamma == 1:
        return rewards.flip(1).cumsum(1).flip(1)
    returns = rewards.clone()
    for t in range(rewards.shape[1] - 2, -1, -1):
        returns[:, t] += gamma * returns[:, t + 1]
    return returns


def leave_one_out(returns: Tensor, mask: Tensor, group: int) -> Tensor:
    """Subtract from returns what the *other* responses to the same prompt return, on average. `[B, T]`.

    Rows come in groups of `group`. A response is compared at each token with those that are still being written there
    (`mask`), and where none is left, with all that are judged. Returns are `[B, T]`, from a token on (0 after the end),
    or `[B, 1]`, of the whole. A row's baseline does not depend on the row, so the gradient stays unbiased.
    """

    def of_others(values: Tensor, taken: Tensor) -> Tensor:
        values = values * taken
        others = taken.sum(1, keepdim=True) - taken
        return (values.sum(1, keepdim=True) - values) / others.clamp(min=1)

    alive = (mask > 0).to(returns.dtype).view(-1, group, mask.shape[1])
    own = returns.view(-1, group, returns.shape[1])
    left = alive.sum(1, keepdim=True) > alive
    baseline = torch.where(left, of_others(own, alive), of_others(own, alive.amax(2, keepdim=True)))
    return ((own - baseline) * alive).view(mask.shape)


def whole_returns(rewards: Tensor) -> Tensor:
    """Return the undiscounted sum of a response's rewards, which counts at each of its tokens. `[B, T]` to `[B, 1]`.

    What came before a token does not depend on it, so in expectation the gradient is that of `returns_to_go`. At the
    optimum this sum is alpha · log Z for *every* response, so there, compared with other responses, it has no noise.
    """
    return rewards.sum(1, keepdim=True)


def _masked(values: Tensor, mask: Tensor) -> Tensor:
    """Return 0 outside the mask, also where the value there is infinite or not a number."""
    return torch.where(mask > 0, values, 0.0)
