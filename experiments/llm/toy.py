"""A language so small that every response can be written down, so the best policy is known exactly.

Responses are strings of letters that stop at the end token or after `length + 1` tokens. "Human" text is a Markov
chain over the letters; a prior is a tiny transformer trained on it. With every response in one list, the optimum of the
decoupled objective is one softmax (`optimum`), and how far a trained model is from it is a sum (`measure`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from repolicy.llm import require_trl
from repolicy.objective import Objective

END = "."  # ends a response, and stands before it as the prompt


@dataclass(frozen=True)
class Toy:
    """letters: the alphabet. length: the most letters in human text. fixed: human text always has that many."""

    letters: str = "abcde"
    length: int = 5
    fixed: bool = False

    @property
    def size(self) -> int:
        """Return the vocabulary: the end token is 0, the letters follow."""
        return 1 + len(self.letters)

    @cached_property
    def sentences(self) -> Tensor:
        """Return all strings of `length` letters as tokens `[letters^length, length]`; a context is a prefix of one."""
        return torch.cartesian_prod(*[torch.arange(1, self.size)] * self.length).view(-1, self.length)

    @cached_property
    def responses(self) -> list[str]:
        """Return every response, as text without the end token: ended ones by length, then those that were cut off."""
        lengths = range(self.length + 2)
        return ["".join(word) for length in lengths for word in product(self.letters, repeat=length)]

    @cached_property
    def lengths(self) -> Tensor:
        """Return letters in each response `[N]`."""
        return torch.tensor([len(word) for word in self.responses], dtype=torch.float64)

    @cached_property
    def rewards(self) -> Tensor:
        """Return the add-on reward of each response `[N]`."""
        return torch.tensor([reward(word) for word in self.responses], dtype=torch.float64)

    @cached_property
    def human(self) -> Tensor:
        """Return log p(next token) of human text after each prefix of each sentence `[sentences, length + 1, size]`."""
        generator = torch.Generator().manual_seed(0)
        scores = torch.randn(self.size, self.size - 1, generator=generator, dtype=torch.float64)
        scores[:, self.letters.index("e")] -= 0.5  # what the add-on asks for is rare in human text
        follow = scores.softmax(-1)
        table = torch.zeros(len(self.sentences), self.length + 1, self.size, dtype=torch.float64)
        for k in range(self.length + 1):
            last = self.sentences[:, k - 1] if k else torch.zeros(len(self.sentences), dtype=torch.long)
            stop = 1.0 if k == self.length else 0.0 if self.fixed else (0.02 if k == 0 else 0.15)
            table[:, k, 0] = stop
            table[:, k, 1:] = (1 - stop) * follow[last]
        return table.clamp(min=1e-12).log().log_softmax(-1)

    def response_log_probs(self, table: Tensor) -> Tensor:
        """Turn log p(next token) after every prefix `[sentences, length + 1, size]` into log p(response) `[N]`."""
        base, parts = len(self.letters), []
        reached = torch.zeros(1, dtype=table.dtype)
        for k in range(self.length + 1):
            after = table[:: base ** (self.length - k), k]  # one row for each prefix of k letters
            parts.append(reached + after[:, 0])
            reached = (reached.unsqueeze(1) + after[:, 1:]).flatten()
        return torch.cat([*parts, reached])


def reward(text: str) -> float:
    """Return the add-on reward: half a point for an e, a whole one for two or more."""
    return min(text.count("e"), 2) / 2


def optimum(objective: Objective, log_prior: Tensor, rewards: Tensor) -> Tensor:
    """Return log π* of every response `[N]`: π* ∝ prior^(omega/alpha) · exp(add-on/alpha)."""
    return ((objective.omega * log_prior + rewards) / objective.alpha).log_softmax(-1)


@dataclass(frozen=True)
class Measures:
    """A policy against the exact optimum. Every number is an expectation over all responses, none is sampled."""

    kl: float  # KL(policy ‖ optimum); the objective that was missed is alpha times this
    addon: float  # add-on reward
    log_prior: float  # log-probability under the prior: the reward that omega weighs
    log_human: float  # log-probability under the human distribution that the prior imitates
    length: float  # letters
    entropy: float  # of the response, in nats
    objective: float  # add-on + omega · log prior − alpha · log policy


def measure(toy: Toy, objective: Objective, log_policy: Tensor, log_prior: Tensor) -> Measures:
    """Return what a policy `[N]` is worth, given the prior `[N]` that the objective speaks of."""
    weight = log_policy.exp()
    best = optimum(objective, log_prior, toy.rewards)
    addon, prior, entropy = (float((weight * x).sum()) for x in (toy.rewards, log_prior, -log_policy))
    kl, human, length = (
        float((weight * x).sum()) for x in (log_policy - best, toy.response_log_probs(toy.human), toy.lengths)
    )
    worth = addon + objective.omega * prior + objective.alpha * entropy
    return Measures(kl, addon, prior, human, length, entropy, worth)


@torch.no_grad()
def tables(toy: Toy, model: Any) -> Tensor:
    """Return log p(next token) of a causal language model after each prefix of each sentence, in double precision."""
    ids = torch.cat([torch.zeros(len(toy.sentences), 1, dtype=torch.long), toy.sentences], dim=1).to(model.device)
    training = model.training
    model.eval()
    table = torch.cat([model(input_ids=part).logits.double().log_softmax(-1) for part in torch.split(ids, 1024)])
    model.train(training)
    return table.cpu()


def next_token(toy: Toy, log_probs: Tensor) -> Tensor:
    """Turn log p(response) `[N]` into log p(next token) after each prefix of each sentence, as in `tables`."""
    base = len(toy.letters)
    blocks = list(log_probs.exp().split([base**k for k in range(toy.length + 1)] + [base ** (toy.length + 1)]))
    begun, table = blocks.pop(), []  # the chance to begin with each string of k + 1 letters
    for k in reversed(range(toy.length + 1)):
        after = torch.cat([blocks[k].unsqueeze(1), begun.view(-1, base)], dim=1)
        begun = after.sum(1)
        table.append((after / begun.unsqueeze(1)).repeat_interleave(base ** (toy.length - k), 0))
    return torch.stack(table[::-1], dim=1).clamp(min=1e-300).log()


def policy_log_probs(toy: Toy, model: Any) -> Tensor:
    """Return log p(response) of a causal language model, for every response `[N]`."""
    return toy.response_log_probs(tables(toy, model))


def new_model(letters: str, length: int, hidden: int = 64, layers: int = 2, seed: int = 0) -> Any:
    """Return a Llama with nothing learned yet, for words of those letters up to that length."""
    require_trl()
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes = {"hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": layers}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": length + 4}
    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}  # a padding token's embedding stays zero
    return LlamaForCausalLM(LlamaConfig(vocab_size=1 + len(letters), tie_word_embeddings=False, **sizes, **ends))


def new_tokenizer(letters: str) -> Any:
    """Return a tokenizer with one token a letter."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {END: 0, **{letter: i + 1 for i, letter in enumerate(letters)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=END))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    ends = {"eos_token": END, "pad_token": END, "clean_up_tokenization_spaces": False}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **ends)


def fit(model: Any, loss: Callable[[], Tensor], steps: int, rate: float = 3e-3, weight_decay: float = 0.0) -> None:
    """Take that many steps down a loss of the model."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.autograd.backward(loss())
        optimizer.step()
        schedule.step()


def pretrain(toy: Toy, model: Any, steps: int, batch: int = 128) -> None:
    """Teach a model the human distribution.

    The targets are the known next-token probabilities, not sampled tokens, so few steps are enough.
    """
    generator = torch.Generator().manual_seed(0)
    human = toy.human.exp().float()
    # Sentences are drawn as if text never stopped; a prefix then counts by the chance that text still goes on.
    going = 1 - human[..., 0]
    alive = torch.cat([torch.ones(len(going), 1), going.cumprod(1)[:, :-1]], dim=1)
    letters = (human[..., 1:] / going.unsqueeze(-1).clamp(min=1e-9)).clamp(min=1e-12).log()
    drawn = sum(letters[:, k].gather(1, toy.sentences[:, k : k + 1] - 1).squeeze(1) for k in range(toy.length))

    def loss() -> Tensor:
        rows = torch.multinomial(torch.as_tensor(drawn).exp(), batch, replacement=True, generator=generator)
        ids = torch.cat([torch.zeros(batch, 1, dtype=torch.long), toy.sentences[rows]], dim=1)
        log_probs = model(input_ids=ids).logits.log_softmax(-1)
        return -(alive[rows].unsqueeze(-1) * human[rows] * log_probs).sum((1, 2)).mean()

    fit(model, loss, steps)


def make_prior(toy: Toy, folder: Path, steps: int = 500, hidden: int = 64, layers: int = 2) -> None:
    """Train a prior and save it with its tokenizer, where it is not there yet."""
    if not (folder / "tokenizer_config.json").exists():
        model = new_model(toy.letters, toy.length, hidden, layers)
        pretrain(toy, model, steps)
        model.save_pretrained(folder)
        new_tokenizer(toy.letters).save_pretrained(folder)


def sample_responses(toy: Toy, log_probs: Tensor, count: int, seed: int) -> list[str]:
    """Draw responses that end in time: TRL puts an end token behind every response that it is given."""
    ended = len(toy.responses) - len(toy.letters) ** (toy.length + 1)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.multinomial(log_probs[:ended].exp(), count, replacement=True, generator=generator)
    return [toy.responses[i] for i in rows.tolist()]


def labelled_pairs(first: list[str], second: list[str], seed: int) -> list[dict[str, str]]:
    """Return preferences of a Bradley-Terry judge with the add-on reward, which are as noisy as that judge."""
    generator = torch.Generator().manual_seed(seed)
    pairs = []
    for one, other, draw in zip(first, second, torch.rand(len(first), generator=generator).tolist(), strict=True):
        prefers_one = draw < torch.sigmoid(torch.tensor(reward(one) - reward(other))).item()
        chosen, rejected = (one, other) if prefers_one else (other, one)
        pairs.append({"prompt": END, "chosen": chosen, "rejected": rejected})
    return pairs


def labelled_responses(responses: list[str], seed: int, threshold: float = 0.5) -> list[dict[str, Any]]:
    """Call responses good or bad, one by one, by the same judge: p(good) = σ(add-on − threshold)."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.rand(len(responses), generator=generator).tolist()
    chances = [torch.sigmoid(torch.tensor(reward(text) - threshold)).item() for text in responses]
    judged = zip(responses, draws, chances, strict=True)
    return [{"prompt": END, "completion": text, "label": draw < chance} for text, draw, chance in judged]
