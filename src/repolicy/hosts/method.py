"""The method, whatever the host: what a rollout pays, the unit in which its critic predicts, and what its update does.

All of it is torch on the device of the host's tensors, once an iteration. Only `Method.measured` waits for them.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from repolicy.errors import NumericError, UsageError
from repolicy.hosts.kept_prior import squashes
from repolicy.hosts.steering import Steering, weighs
from repolicy.learning.multipliers import block_means
from repolicy.learning.ppo import ReturnScale, adaptive_learning_rate, std_speed
from repolicy.learning.worker import MIN_WARMUP_LEARNING_RATE
from repolicy.objective import DIALED, Reward, reformulated
from repolicy.policies import Density, Mlp, log_tanh_slope, moment_sums
from repolicy.prepare.states import familiarity
from repolicy.runs import Estimate, Settings

DESIRED_KL = Settings().desired_kl  # of an update
TARGET_KL = 3.0 * DESIRED_KL  # at which an update ends early, as the engine's
LITTLE = 1e-6  # of returns known: the first ones set the unit, and what a critic predicts stays
PARTS = ("task", "prior", "entropy", "states")
SPENT = ("prior_kl", "below_prior", "below_prior_squares")  # nats a step; KL(policy ‖ prior) comes from samples
SUMMED = (*PARTS, *SPENT, "later", "steps")  # over a rollout; later: what is earned by later ends than the prior's
AVERAGED = 0.05  # share of the newest rollout in what ends tell


def quicken(optimizer: torch.optim.Optimizer, log_std: Tensor, samples: int) -> None:
    """Let an optimizer take as long steps of a std's logarithm as the engine takes with so many samples an update."""
    before = log_std.detach().clone()

    def keep(*_: Any) -> None:
        before.copy_(log_std.detach())

    def go_on(*_: Any) -> None:
        log_std.data.add_(log_std.detach() - before, alpha=std_speed(samples) - 1.0)

    optimizer.register_step_pre_hook(keep)
    optimizer.register_step_post_hook(go_on)


class Seen(NamedTuple):
    """A rollout as a host tells it: each part is `[T, N, ...]`, on one device."""

    observations: Any  # as the prior takes them
    actions: Tensor  # as they were sampled
    log_policy: Tensor
    task: Tensor
    ended: Tensor  # bool
    states: Callable[[], Tensor]  # returns what the environment showed after each step, in rows of numbers
    held: Tensor  # what limits are on, `[L, T, N]`


class Rewarded(NamedTuple):
    """What a rollout paid. The sums are those of all GPUs."""

    reward: Reward
    sums: Tensor  # of each of `SUMMED`
    of_limits: Tensor  # of what limits are on, sums of means, of squared means, and of squares, `[3, L]`
    steps: int  # of one mean
    width: float  # how many numbers an action has, where the prior's entropy is known


class Credited(NamedTuple):
    """What the returns of a rollout were."""

    moments: Tensor  # the `sums` of what the critic left of returns, and of returns, `[3, 2]`
    explained: float | None  # of the returns, where who gives the credit tells it


class UnitCritic:
    """A host's critic whose outputs are in the unit of its returns while it learns, and in rewards otherwise.

    Hosts take a gradient where they learn, and take none where they act, so a hook on the module tells which it is.
    """

    def __init__(self, module: nn.Module, last: nn.Linear | Mlp, scale: ReturnScale) -> None:
        self.last, self.scale = last, scale
        # What files hold in rewards, as everybody else loads it; a critic with places on dials is for nobody else.
        self.layer: list[Tensor] = [] if isinstance(last, Mlp) else [*last.parameters()]
        self.place()
        module.register_forward_hook(
            lambda _, __, outputs: outputs if torch.is_grad_enabled() else outputs * self.std + self.mean
        )

    def place(self) -> None:
        """Take the unit to the critic's device, once an iteration, for all the steps that ask for it."""
        place = next(self.last.parameters())
        self.mean, self.std = self.scale.mean.to(place), self.scale.std.to(place)

    @torch.no_grad()
    def rescale(self, factor: Tensor, offset: Tensor) -> None:
        """Change the outputs to factor · what they were + offset."""
        self.moved = factor, offset
        self.place()
        factor, offset = factor.to(self.mean), offset.to(self.mean)
        if isinstance(self.last, Mlp):
            self.last.rescale(factor, offset)
            return
        self.last.weight.mul_(factor.unsqueeze(-1))
        self.last.bias.mul_(factor).add_(offset)

    def state(self) -> dict[str, Any]:
        """Return the unit, and the last layer in it, in plain numbers."""
        return {
            "returns": self.scale.statistics.flatten().tolist(),
            "critic": [part.tolist() for part in self.layer],
        }

    @contextmanager
    def in_rewards(self) -> Iterator[None]:
        """Let the critic predict rewards meanwhile."""
        own = [part.detach().clone() for part in self.layer]
        self._set(self._as_rewards(own))
        try:
            yield
        finally:
            self._set(own)

    def resume(self, state: Mapping[str, Any] | None) -> None:
        """Go on in the unit of a `state`, after the host has loaded its critic.

        Without one, or where the last layer has been trained elsewhere since, the outputs are rewards.
        """
        if state is not None:
            self._take(state["returns"])
            own = [torch.tensor(part).to(self.mean) for part in state["critic"]]
            if all(map(torch.allclose, self._as_rewards(own), self.layer)):
                self._set(own)
                return
        self._take([LITTLE, 0.0, 1.0])

    def _take(self, statistics: Sequence[float]) -> None:
        self.scale.statistics = torch.tensor(statistics, dtype=torch.float64).reshape(3, -1)
        self.place()

    def _as_rewards(self, layer: Sequence[Tensor]) -> list[Tensor]:
        """Return weights and biases in this unit as they are where outputs are rewards."""
        return [part * self.std.unsqueeze(-1) if part.dim() == 2 else part * self.std + self.mean for part in layer]

    @torch.no_grad()
    def _set(self, layer: Sequence[Tensor]) -> None:
        for part, values in zip(self.layer, layer, strict=True):
            part.copy_(values)


class Method:
    """What a host's class asks in every iteration: `reward`, `credit`, `measured`, `updating`, in this order."""

    critic: UnitCritic  # of a host whose rewards are changed
    moved: Tensor | None = None  # by the last update: KL(before ‖ after) summed over some states, and their number
    spent: tuple[dict[str, float], int]  # nats a step by each way to count them, and over how many steps
    rewarded: Rewarded  # by the last rollout, as `reward` leaves it
    credited: Credited  # the same, as `credit` leaves it

    def __init__(self, steering: Steering, prior: Any, add_up: Callable[[Tensor], Any] = lambda tensor: tensor) -> None:
        """Take a `ByDistribution` as `prior`, or None. `add_up` adds a tensor up over all GPUs, in place."""
        self.steering, self.prior, self.add_up = steering, prior, add_up
        self.named = steering.objective, steering.settings.budget  # before anything is measured
        self.scale = ReturnScale()
        self.squashes = squashes(prior)  # whether the environment gets tanh of the actions, whose density counts
        self.density: Density | None = None  # of the prior's states, where the objective weighs them
        self.ages: Tensor | None = None  # steps into the episode under way, `[N]`
        self.curves: dict[str, list[Any]] = {"steps": []}  # what `measured` told, for the report
        self.compared: list[dict[str, Any]] = []  # episodes of the last verdict, for the report, too

    @property
    def changes_rewards(self) -> bool:
        return weighs(self.steering.objective) or bool(self.steering.held)

    @property
    def is_ready(self) -> bool:
        """Whether nothing is left to be measured by episodes of the prior."""
        steering, weights = self.steering, self.steering.objective
        learnt, kept = not weights.states or self.density is not None, bool(steering.kept) or not steering.keep
        return self.prior is None or (weights.is_set and learnt and kept)

    def forget(self) -> None:
        """Begin anew where episodes do, in all environments: the prior's memory and the ages are of those before."""
        self.ages = None
        if self.prior is not None:
            self.prior.forget()

    def scaled(self, module: nn.Module, last: nn.Linear | Mlp) -> None:
        """Let the host's critic predict in the unit of its returns; without any weight it stays the host's own."""
        if self.changes_rewards:
            self.scale = ReturnScale(len(last.biases[-1] if isinstance(last, Mlp) else last.bias))
            self.critic = UnitCritic(module, last, self.scale)

    def reward(self, seen: Seen, **weights: Tensor) -> Tensor:
        """Return the reformulated rewards `[T, N]` of a rollout; their sums are kept for `measured`.

        `weights`: each step's own omega or alpha, where that is a range.
        """
        task, log_policy, below = seen.task, seen.log_policy, torch.zeros_like(seen.task)
        if self.squashes:
            slope = log_tanh_slope(seen.actions).sum(-1)
            log_policy = log_policy - slope.to(log_policy.device)
        log_prior, width = None, math.inf
        if self.prior is not None:
            log_prior, entropy = self.prior.score(seen.observations, seen.actions, seen.ended)
            if entropy is None and self.steering.log_prior_budget is not None:
                what = "log_prior_budget asks how likely the prior's own actions are, which this prior does not tell"
                raise UsageError(f"{what}: take kl_budget")
            both = torch.stack([log_prior, torch.zeros_like(log_prior) if entropy is None else -entropy - log_prior])
            width = math.inf if entropy is None else seen.actions.shape[-1]
            log_prior, below = both.to(task.device)  # a host may keep rollouts elsewhere than its networks: one copy
        ages = ages_of(seen.ended, self.ages)
        self.ages = ages[-1]
        familiar = self._familiarity(seen, ages[1:])
        reward = reformulated(self.steering.objective, task, log_prior, log_policy, familiar, **weights)

        away = below if log_prior is None else log_policy - log_prior
        later = self.steering.earned_later(ages[:-1], seen.ended).to(task) if self.steering.kept else 0.0 * task
        summed = [*(getattr(reward, name) for name in PARTS), away, below, below.square(), later, torch.ones_like(task)]
        held = seen.held.double()
        means = block_means(held)
        of_limits = torch.stack([means.sum(-1), means.square().sum(-1), held.square().sum((1, 2))])
        added = self.add_up(torch.stack([part.double().sum() for part in summed]))
        self.rewarded = Rewarded(reward, added, self.add_up(of_limits), task.numel() // means.shape[-1], width)

        total: Tensor = reward.total
        limits = self.steering.held
        return total - limits.price(seen.held[: len(limits)]) if limits else total

    def credit(self, returns: Tensor, values: Tensor, explained: float | None = None) -> None:
        """Take in a rollout's returns, and turn both into the critic's unit, in place: `[T, N]`, or `[T, N, H]`."""
        moments = self.add_up(moment_sums(torch.stack([returns - values, returns], -1)))
        self.credited = Credited(moments, explained)
        if not self.changes_rewards:
            return
        outputs = self.scale.apply(values)
        self.scale.update(moments[:, 1:] if returns.dim() == 2 else self.add_up(moment_sums(returns)), self.critic)
        factor, offset = self.critic.moved
        returns.copy_(self.scale.apply(returns))
        values.copy_(outputs * factor.to(outputs.dtype) + offset.to(outputs.dtype))

    def measured(self) -> dict[str, float]:
        """Return the iteration's means. Raises where one is not finite."""
        steering, objective = self.steering, self.steering.objective
        paid, unit = self.rewarded, self.scale.std.mean()
        moved = torch.zeros(2) if self.moved is None else self.moved
        numbers = numbers_of(paid.sums, paid.of_limits, self.credited.moments, unit, moved)  # the one wait
        added, of_limits, moments, (unit_of_returns,), (kl, states) = numbers
        self.update_kl = kl / max(states, 1.0)  # KL of the last update

        sums_of = dict(zip(SUMMED, added, strict=True))
        steps = sums_of.pop("steps")
        means = {name: total / steps for name, total in sums_of.items()}
        limits = dict(zip(steering.limited, np.reshape(of_limits, (3, -1)).T.tolist(), strict=True))
        check_finite({name: means[name] for name in PARTS} | {name: sum(three) for name, three in limits.items()})
        self.spent = {name: means[name] for name in SPENT}, int(steps)

        explained = self.credited.explained
        steering.explained = _explained(np.reshape(moments, (3, 2)) / steps) if explained is None else explained
        shown = {f"reward_{name}": means[name] for name in PARTS if name != "states" or objective.states}
        dialed = {dial.name for dial in objective.dials}
        shown |= {name: getattr(objective, name) for name in DIALED if name not in dialed}  # that were in force
        if self.prior is not None:
            shown["prior_kl"] = means["prior_kl"]
        shown |= {"explained_variance": steering.explained, "return_scale": unit_of_returns}
        steering.later += AVERAGED * (means["later"] - steering.later)
        shown |= self._limits_told(limits, steps, wider=means["below_prior"] - means["prior_kl"])
        self._keep(shown, int(steps))
        return shown

    def _limits_told(self, limits: Mapping[str, list[float]], steps: float, wider: float) -> dict[str, float]:
        """Take in what limits are on, and return what is told of them. `wider`: the policy's entropy above the prior's.

        limits: of each the sums of its means and of their squares, and over steps of its square.
        """
        steering, count = self.steering, steps / self.rewarded.steps  # of means
        measured = {name: Estimate.of(total, square, count) for name, (total, square, _) in limits.items()}
        if kept := measured.get(steering.kept):
            # The mean action loses nothing by noise. What noise costs grows with its variance, which entropies tell.
            lost = steering.gap * min(1.0, math.exp(2.0 * wider / self.rewarded.width))
            # Earlier ends than the prior's cost what it earned later. Later ones may be those that only noise had.
            measured[steering.kept] = kept._replace(mean=kept.mean + lost + min(0.0, steering.later))
        sizes = {name: math.sqrt(square / steps) for name, (*_, square) in limits.items()}
        told = steering.held.metrics(measured, sizes, steering.objective)
        return told | steering.share.metrics(measured, dict.fromkeys(sizes, 1.0), steering.objective)

    @contextmanager
    def updating(
        self, actor: Iterable[nn.Parameter], rate: float | None, take: Callable[[float], None]
    ) -> Iterator[bool]:
        """Stand around a host's update, which is told whether it is the critic's alone; then the weights move.

        rate: the learning rate, where that moves once an iteration, by how far the last update moved the actor.
        """
        alone = not self.steering.fits_actor
        if rate is not None:
            rate = adaptive_learning_rate(rate, self.update_kl, DESIRED_KL)
            take(max(rate, MIN_WARMUP_LEARNING_RATE) if alone else rate)
        with without_gradient(actor if alone else ()):
            yield alone
        if rate is not None:
            take(rate)  # which a checkpoint keeps
        self.moved = None
        self.steering.steer(*self.spent)

    def _keep(self, shown: Mapping[str, float], steps: int) -> None:
        """Add an iteration's means to the curves."""
        before = self.curves["steps"]
        count, new = len(before), {**shown, "steps": (before[-1] if before else 0) + steps}
        for name in {**self.curves, **new}:
            self.curves.setdefault(name, [None] * count).append(new.get(name))

    def _familiarity(self, seen: Seen, ages: Tensor) -> Tensor | None:
        """Return how familiar the states are that the steps led to, `[T, N]`; how an episode begins does not count."""
        if self.density is None or not self.steering.objective.states:
            return None
        return familiarity(self.density, self.density.normalized, seen.states(), ages).to(seen.task.dtype)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold beside the networks, in plain numbers, and the density's tensors."""
        told = {"curves": {name: [*values] for name, values in self.curves.items()}, "compared": self.compared}
        moved = None if self.moved is None else self.moved.tolist()
        critic = self.critic.state() if self.changes_rewards else {}
        return self.steering.state() | {"moved": moved} | critic | told

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken."""
        self.steering.resume(state, *self.named)
        self.curves = {name: [*values] for name, values in state.get("curves", self.curves).items()}
        if state.get("moved"):
            self.moved = torch.tensor(state["moved"], dtype=torch.float64)

    def critic_in_rewards(self) -> AbstractContextManager[None]:
        """Let the critic predict rewards meanwhile, so that others can load what is saved."""
        return self.critic.in_rewards() if self.changes_rewards else nullcontext()

    def resume_critic(self, state: Mapping[str, Any] | None) -> None:
        """Go on with a critic that was loaded, of a model with that `state`, or of the host's own class."""
        if self.changes_rewards:
            self.critic.resume(state if state and "returns" in state else None)


@contextmanager
def without_gradient(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Let the parameters take no gradient meanwhile, so that an optimizer passes them by."""
    moving = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in moving:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in moving:
            parameter.requires_grad_(True)


def entry(told: Mapping[str, Any], name: str, told_in: str, why: str) -> Any:
    """Return an entry of what an environment tells beside its reward."""
    if name not in told:
        known = ", ".join(sorted(told)) or "nothing"
        raise UsageError(f"the environment's {told_in} have no {name!r}, which {why}; they have {known}")
    return told[name]


def numbers_of(*tensors: Tensor) -> list[list[float]]:
    """Return the numbers of each tensor, with one wait for the device of the first."""
    told = iter(torch.cat([tensor.to(tensors[0]).flatten() for tensor in tensors]).tolist())
    return [list(islice(told, tensor.numel())) for tensor in tensors]


def ages_of(ended: Tensor, before: Tensor | None) -> Tensor:
    """Return how many steps into its episode each state of a rollout is, `[T + 1, N]`; 0 where one begins with it.

    before: `[N]`, that of the first state; None where episodes begin there.
    """
    first = torch.zeros_like(ended[0], dtype=torch.long) if before is None else before
    steps = torch.arange(1, len(ended) + 1, device=ended.device).unsqueeze(-1)
    last = torch.where(ended, steps, 0).cummax(0).values
    return torch.cat([first.unsqueeze(0), torch.where(last > 0, steps - last, first + steps)])


def _explained(moments: np.ndarray) -> float:
    """Return which share of the returns' variance the critic explains, by the moments `[3, 2]` of a step."""
    _, means, squares = moments
    unexplained, varied = np.maximum(squares - means**2, 0.0).tolist()
    return float(1.0 - unexplained / max(varied, 1e-12))


def check_finite(parts: Mapping[str, float]) -> None:
    """Raise where a part of the reward stopped being finite, before anything learns from it."""
    words = {"task": "reward", "prior": "prior's log-probability", "entropy": "policy's log-probability"}
    words["states"] = "price on states"
    for name, value in parts.items():
        if not math.isfinite(value):
            what = words.get(name, f"quantity of the limit {name}")
            raise NumericError(f"the {what} is not finite in this iteration; no update was made from it")
