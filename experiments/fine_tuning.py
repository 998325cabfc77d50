"""What fine-tuning does to a policy: eight ways from the same prior and wish, iteration by iteration.

    python -m experiments.fine_tuning
    python -m experiments.fine_tuning --picture docs/images/fine-tuning.png     # of what is in the file

All are Stable-Baselines3's PPO on the same environments, which pay the wish alone: nothing differs but what the row of
WAYS says. A line of the file holds the curves of a run, of the basic reward, which nobody learns from, and of the wish,
and 100 episodes at the end. Go1 is the published policy of a robot, from the folder --priors.
"""

import copy
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import Tensor

from experiments import campaign
from experiments.batches import ForSb3, Paid
from experiments.ledger import Row
from experiments.paper.runs import settings_of
from experiments.statistics import smooth_curve
from experiments.through_hosts import summary
from repolicy import Policy, load_policy
from repolicy.hosts.sb3 import ResidualPPO, from_repolicy, like, to_repolicy
from repolicy.policies.policy import frozen
from repolicy.prepare.defaults import customize_defaults
from repolicy.runs.machine import die_with


@dataclass(frozen=True)
class Task:
    """A prior, a wish, and the weights that Repolicy's own results use for them."""

    prior: str
    env: str
    addon: str
    omega: float
    alpha: float
    budget: float
    curve: str  # to look at: HalfCheetah's episodes never end early, Hopper's falls show in the episodes' return


@dataclass(frozen=True)
class Way:
    """How people fine-tune: what is in the reward, what is in the loss, what moves and how fast."""

    omega: str = "none"  # "own": the task's weights; "tied": both weights are the task's omega
    warmup: bool = False  # whether the critic is fitted alone for the first 5 % of the iterations
    budget: bool = False
    rate: float = 1.0  # times the learning rate
    kl_loss: float = 0.0  # weight of KL(policy ‖ prior) in the loss
    frozen_std: bool = False


GO1 = "Go1JoystickFlatTerrain-v1?observe=state"
TASKS = {
    "halfcheetah": Task("halfcheetah", "HalfCheetah-v4", "hind_leg=10", 0.6, 0.13472, 2.0, "basic"),
    "hopper": Task("hopper", "Hopper-v4", "height", 0.3, 0.001, 1.0, "basic_return"),
    "go1": Task("mujoco_playground/go1_policy.onnx", GO1, "energy", 0.015, 0.005, 2.0, "basic"),
}
WAYS = {
    "ppo": Way(),
    "ppo, a tenth of the learning rate": Way(rate=0.1),
    "ppo, critic warm-up": Way(warmup=True),
    "ppo, KL to the prior in the loss": Way(kl_loss=0.1),
    "ppo, frozen std": Way(frozen_std=True),
    "KL in the reward (tied weights)": Way(omega="tied"),
    "residual": Way(omega="own", warmup=True),
    "residual, KL budget": Way(omega="tied", warmup=True, budget=True),
}


class NearPrior(ActorCriticPolicy):  # type: ignore[misc]
    """A policy whose entropy, for PPO's loss, is −KL(policy ‖ what it was at the start): so ent_coef weighs the KL."""

    anchor: Any = None

    def evaluate_actions(self, obs: Any, actions: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        values, log_prob, _ = super().evaluate_actions(obs, actions)
        with torch.no_grad():
            held = self.anchor.get_distribution(obs).distribution
        mine = self.get_distribution(obs).distribution
        return values, log_prob, -torch.distributions.kl_divergence(mine, held).sum(-1)


class Acting(ActorCriticPolicy):  # type: ignore[misc]
    """The same for a policy of any family, which stays Repolicy's own; the critic beside it has its normalizer.

    Stable-Baselines3's PPO has no network for a std, and none whose actions pass through tanh: Go1's has both.
    """

    def __init__(self, *spaces: Any, start: Policy, how: Way, **host: Any) -> None:
        self._parts = {"actor": copy.deepcopy(start).requires_grad_(), "start": start}
        self._how = how
        super().__init__(*spaces, **host)

    def _build(self, lr_schedule: Any) -> None:
        self.actor, self.start = self._parts["actor"], self._parts["start"]
        super()._build(lr_schedule)

    def forward(self, obs: Tensor, deterministic: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        distribution = self.distribution(obs)
        actions = distribution.mode() if deterministic else distribution.sample()
        return actions, self.predict_values(obs), distribution.log_prob(actions)

    def evaluate_actions(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        distribution = self.distribution(obs)
        entropy = -distribution.kl(self.start(obs)) if self._how.kl_loss else distribution.entropy()
        return self.predict_values(obs), distribution.log_prob(actions), entropy

    def predict_values(self, obs: Tensor) -> Tensor:
        values: Tensor = self.value_net(self.mlp_extractor.forward_critic(self.actor.normalizer(obs)))
        return values

    def distribution(self, obs: Tensor) -> Any:
        """Return that of the actor; with a frozen std, the one that the start has in that state."""
        distribution: Any = self.actor(obs)
        if self._how.frozen_std:
            distribution.log_std = self.start(obs).log_std.detach()
        return distribution


class Curves(BaseCallback):  # type: ignore[misc]
    """What the environments noted, iteration by iteration."""

    def __init__(self, paid: Paid) -> None:
        super().__init__()
        self.paid = paid
        self.found: list[dict[str, float]] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.found.append(self.paid.noted())


def measure(task: str, way: str, seed: int, steps: int, priors: Path) -> Row:
    torch.set_num_threads(1)
    setup, how = TASKS[task], WAYS[way]
    kind: Any
    scores: Any
    shipped = not setup.prior.endswith(".onnx")
    prior = load_policy(setup.prior if shipped else priors / setup.prior)
    usual = settings_of(setup.env) if shipped else customize_defaults(prior)
    settings = replace(usual, seed=seed, steps=steps)
    paid = Paid(setup.env, setup.addon, settings.envs, seed, prior.to_environment)
    weights = {"none": (0.0, 0.0), "own": (setup.omega, setup.alpha), "tied": (setup.omega, setup.omega)}[how.omega]
    if shipped:
        kind, built, scores = NearPrior if how.kl_loss else "MlpPolicy", like(prior), prior
    else:
        kind, built = Acting, {"start": prior, "how": how, "net_arch": {"pi": [], "vf": list(settings.hidden)}}
        scores = SimpleNamespace(log_prob=prior.log_prob)  # of actions before tanh, which hosts know nothing of
    warmup, budget = round(0.05 * settings.iterations) if how.warmup else 0, setup.budget if how.budget else None
    model = ResidualPPO(
        kind, ForSb3(paid), prior=scores, copy_prior=False, omega=weights[0], alpha=weights[1], critic_warmup=warmup,
        kl_budget=budget, policy_kwargs=built, ent_coef=how.kl_loss, learning_rate=settings.learning_rate * how.rate,
        n_steps=settings.n_steps, batch_size=settings.minibatch, n_epochs=settings.epochs, gamma=settings.gamma,
        gae_lambda=settings.gae_lambda, vf_coef=0.5, target_kl=None, seed=seed, device="cpu",
    )  # fmt: skip
    if shipped:
        from_repolicy(prior, model)
        if how.kl_loss:
            object.__setattr__(model.policy, "anchor", copy.deepcopy(model.policy))  # no module of the model's own
        model.policy.log_std.requires_grad_(not how.frozen_std)
    curves = Curves(paid)
    model.learn(steps, callback=curves)
    names = sorted({name for each in curves.found for name in each})
    row: Row = {"task": task, "way": way, "seed": seed, "curve": setup.curve}
    row |= {"iteration_steps": settings.iteration_steps}
    row["curves"] = {name: [each.get(name) for each in curves.found] for name in names}
    last = to_repolicy(model) if shipped else frozen(model.policy.actor)
    return row | {"end": summary(last, setup.env, setup.addon)}


def picture(found: campaign.Rows, path: Path) -> None:
    """Draw the unseen reward over the steps, a panel a task, a line a way: the mean of its seeds, and their range."""
    import matplotlib.pyplot as plt
    import numpy as np

    rows = [*found.values()]
    tasks = [task for task in TASKS if any(row["task"] == task for row in rows)]
    figure, panels = plt.subplots(1, len(tasks), figsize=(2.5 + 6 * len(tasks), 4), squeeze=False, layout="constrained")
    for panel, task in zip(panels[0], tasks, strict=True):
        for way in WAYS:
            mine = [row for row in rows if (row["task"], row["way"]) == (task, way)]
            if not mine:
                continue
            curves = np.array([smooth_curve(row) for row in mine])
            steps = mine[0]["iteration_steps"] * np.arange(1, curves.shape[1] + 1) / 1e6
            seen = ~np.isnan(curves).any(0)
            steps, low, middle, high = (each[seen] for each in (steps, curves.min(0), curves.mean(0), curves.max(0)))
            [line] = panel.plot(steps, middle, label=way, lw=2.2 if "residual" in way else 1.2)
            panel.fill_between(steps, low, high, color=line.get_color(), alpha=0.12)
        what = "basic reward a step" if TASKS[task].curve == "basic" else "basic return of an episode"
        panel.set(title=f"{task}, {TASKS[task].addon}", xlabel="million steps", ylabel=f"{what}, which nobody sees")
        panel.spines[["top", "right"]].set_visible(False)
    figure.legend(*panels[0][-1].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=8)
    figure.savefig(path, dpi=100)


def alone(*run: Any) -> Row:
    """Measure in a process of its own: 128 robots take 3 GB until their process ends."""
    with ProcessPoolExecutor(1, get_context("spawn"), die_with, (os.getpid(),)) as process:
        return process.submit(measure, *run).result()


@campaign.program(
    "ledger", tasks=[*TASKS], seeds=(0, 1, 2), steps=1_000_000, priors=Path("../shared/priors"), draw=picture
)
def main(options: campaign.Options) -> campaign.Measurements:
    runs = [(task, way, seed, options.steps) for seed, task, way in product(options.seeds, options.tasks, WAYS)]
    return {"/".join(map(str, run)): partial(alone, *run, options.priors) for run in runs}
