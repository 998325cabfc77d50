"""GRPO's KL and entropy against the exact gradient, by listing every response: python -m experiments.llm gradients.

In the paper's return a token answers for what comes after it; in GRPO's loss, for itself alone (the δ(t′, t) of Eq. 8).
Compared is the expected gradient of each with that of the objective, for random policies and references.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from experiments import campaign
from experiments.ledger import Row
from experiments.llm.jobs import Job, job_grid, measurements
from experiments.pages import markdown_table
from repolicy.llm.losses import returns_to_go, token_rewards, whole_returns
from repolicy.objective import greedy, kl

Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def run(job: Job) -> Row:
    """Return cosine and relative length of each expected gradient, beside the exact one; means over the draws."""
    rows = list_responses(job["vocabulary"], job["length"])
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in (*KL_TERMS, *ENTROPY_TERMS)}
    for draw in range(job["draws"]):
        generator = torch.Generator().manual_seed(draw)
        shape = (2, job["length"], job["vocabulary"], job["vocabulary"])  # by step and last token
        policy, reference = torch.randn(shape, generator=generator, dtype=torch.float64)
        for terms, exact in ((KL_TERMS, _kl), (ENTROPY_TERMS, _entropy)):
            target = _gradient(exact, policy, reference, rows)
            for name, term in terms.items():
                found[name].append(_compare(_gradient(term, policy, reference, rows), target))
    means = {name: torch.tensor(pairs, dtype=torch.float64).mean(0).tolist() for name, pairs in found.items()}
    return {what: {name: pair[i] for name, pair in means.items()} for i, what in enumerate(("cosine", "relative_norm"))}


def list_responses(vocabulary: int, length: int) -> list[list[int]]:
    """Return every response: up to the end token 0, which is the first of the vocabulary, or cut off at the length."""
    ended: list[list[int]] = []
    going: list[list[int]] = [[]]
    for _ in range(length):
        grown = [[*row, token] for row in going for token in range(vocabulary)]
        ended += [row for row in grown if row[-1] == 0]
        going = [row for row in grown if row[-1] != 0]
    return ended + going


def token_log_probs(scores: Tensor, rows: list[list[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Return log p(token) `[N, T]`, the entropy of its whole distribution `[N, T]`, and the mask `[N, T]`."""
    table, (count, length) = scores.log_softmax(-1), (len(rows), scores.shape[0])
    tokens = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    mask = torch.tensor([[1.0] * len(row) + [0.0] * (length - len(row)) for row in rows], dtype=scores.dtype)
    last = torch.cat([torch.zeros(count, 1, dtype=torch.long), tokens[:, :-1]], dim=1)
    following = table[torch.arange(length), last]  # [N, T, vocabulary]
    log_probs = following.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) * mask
    return log_probs, -(following.exp() * following).sum(-1) * mask, mask


def _kl(policy: Tensor, reference: Tensor, _: Tensor, mask: Tensor) -> Tensor:
    """Return −KL of whole responses: the exact sum, through which a gradient flows in every way that it can."""
    return (policy.sum(1).exp() * (reference - policy).sum(1)).sum()


def _entropy(policy: Tensor, reference: Tensor, _: Tensor, mask: Tensor) -> Tensor:
    return -(policy.sum(1).exp() * policy.sum(1)).sum()


def _k3(corrected: bool) -> Loss:
    """Return GRPO's KL in the loss, with or without `use_bias_correction_kl`."""

    def term(policy: Tensor, reference: Tensor, _: Tensor, mask: Tensor) -> Tensor:
        k3 = (reference - policy).exp() - (reference - policy) - 1
        ratio = (policy - policy.detach()).exp() if corrected else 1.0
        return -(_chances(policy) * k3 * ratio * mask).sum()

    return term


def _returns(entropy_only: bool, whole: bool = False) -> Loss:
    """Return the paper's loss: the same terms in the reward, each token credited with what follows (or with all)."""

    def term(policy: Tensor, reference: Tensor, _: Tensor, mask: Tensor) -> Tensor:
        objective, nothing = greedy(1.0) if entropy_only else kl(1.0), torch.zeros(len(policy), dtype=policy.dtype)
        rewards = token_rewards(objective, nothing, policy.detach(), reference, mask)
        credit = whole_returns(rewards) if whole else returns_to_go(rewards)
        return (_chances(policy) * credit * policy * mask).sum()

    return term


def _entropy_bonus(policy: Tensor, reference: Tensor, entropies: Tensor, mask: Tensor) -> Tensor:
    """Return GRPO's `entropy_coef`: the mean entropy of a batch's tokens, which responses of all lengths share."""
    return (_chances(policy) * entropies * mask).sum() / (_chances(policy) * mask).sum()


def _chances(policy: Tensor) -> Tensor:
    """Return how often each response is sampled `[N, 1]`; sampling passes no gradient."""
    return policy.detach().sum(1, keepdim=True).exp()


KL_TERMS: dict[str, Loss] = {
    "KL: k3 in the loss": _k3(corrected=False),
    "KL: k3 in the loss, bias corrected": _k3(corrected=True),
    "KL: in the reward, returns onward": _returns(entropy_only=False),
    "KL: in the reward, returns of the whole": _returns(entropy_only=False, whole=True),
}
ENTROPY_TERMS: dict[str, Loss] = {
    "entropy: entropy_coef in the loss": _entropy_bonus,
    "entropy: in the reward, returns onward": _returns(entropy_only=True),
}


def _gradient(term: Loss, policy: Tensor, reference: Tensor, rows: list[list[int]]) -> Tensor:
    scores = policy.clone().requires_grad_()
    log_policy, entropies, mask = token_log_probs(scores, rows)
    log_reference, _, _ = token_log_probs(reference, rows)
    return torch.autograd.grad(term(log_policy, log_reference, entropies, mask), scores)[0].flatten()


def _compare(found: Tensor, exact: Tensor) -> tuple[float, float]:
    """Return cosine, and length relative to the exact gradient's."""
    lengths = found.norm(), exact.norm()
    return float(found @ exact / (lengths[0] * lengths[1])), float(lengths[0] / lengths[1])


def table(rows: list[Row]) -> str:
    """Return a row for each expected gradient."""
    [row] = rows
    cosine, length = row["cosine"], row["relative_norm"]
    lines = [[name, f"{cosine[name]:.4f}", f"{length[name]:.3f}"] for name in cosine]
    return markdown_table(["expected gradient of", "cosine with the exact one", "relative length"], lines)


@campaign.program("ledger", vocabulary=4, length=4, draws=20)
def main(options: campaign.Options) -> campaign.Measurements:
    jobs = job_grid(options, ("vocabulary", "length", "draws"))
    return measurements(jobs, lambda job, _: run(job), Path())
