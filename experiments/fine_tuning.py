"""Compare eight ways to fine-tune a policy, from the same prior and to the same wish, iteration by iteration.

    python -m experiments.fine_tuning
    python -m experiments.fine_tuning --picture docs/images/fine-tuning.png     # of what is in the file

All are Stable-Baselines3's PPO on the same environments, whose reward is the wish alone. They differ only by their
entry in WAYS. A row of the ledger has curves of the wish and of the basic reward, which no way learns from, and 100
episodes of the last policy. Go1 is the published policy of a robot, from the folder --priors.
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
from experiments.batches import AddonEnvs, Sb3Envs
from experiments.ledger import Row
from experiments.paper.runs import fixed_settings
from experiments.statistics import smooth_curve
from experiments.through_hosts import evaluate_returns
from repolicy import Policy, load_policy
from repolicy.hosts.sb3 import ResidualPPO, from_repolicy, like, to_repolicy
from repolicy.policies.policy import frozen
from repolicy.prepare.defaults import customize_defaults
from repolicy.runs.machine import die_with


@dataclass(frozen=True)
class Task:
    """A prior, a wish, and the weights of Repolicy's own results for them."""

    prior: str
    env: str
    addon: str
    omega: float
    alpha: float
    budget: float
    curve: str  # to draw: a reward per step if episodes never end early, else the return, which shows falls


@dataclass(frozen=True)
class Way:
    """Settings of one way to fine-tune."""

    omega: str = "none"  # "own": the task's weights; "tied": both weights are the task's omega
    warmup: bool = False  # whether only the critic is trained in the first 5 % of the iterations
    budget: bool = False  # whether omega is adapted to the task's KL budget
    rate: float = 1.0  # factor on the learning rate
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


class KlAnchoredPolicy(ActorCriticPolicy):  # type: ignore[misc]
    """A policy that returns −KL(policy ‖ anchor) as its entropy, so that `ent_coef` is the weight of a KL loss."""

    anchor: Any = None  # a copy of the policy at the start of training

    def evaluate_actions(self, obs: Any, actions: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        values, log_prob, _ = super().evaluate_actions(obs, actions)
        with torch.no_grad():
            anchor = self.anchor.get_distribution(obs).distribution
        current = self.get_distribution(obs).distribution
        return values, log_prob, -torch.distributions.kl_divergence(current, anchor).sum(-1)


class RepolicyActor(ActorCriticPolicy):  # type: ignore[misc]
    """A Stable-Baselines3 policy whose actor is a Repolicy policy of any family; the critic shares its normalizer.

    The Go1's policy needs it: its std is a network's output and its actions pass through tanh, and Stable-Baselines3's
    own policies for PPO have neither. With `kl_loss`, the entropy is −KL(actor ‖ start).
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
        """Return the actor's distribution; with a frozen std, the start's std replaces the actor's."""
        distribution: Any = self.actor(obs)
        if self._how.frozen_std:
            distribution.log_std = self.start(obs).log_std.detach()
        return distribution


class Curves(BaseCallback):  # type: ignore[misc]
    """A callback that stores the environments' mean rewards of each iteration."""

    def __init__(self, envs: AddonEnvs) -> None:
        super().__init__()
        self.envs = envs
        self.iterations: list[dict[str, float]] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.iterations.append(self.envs.pop_log())


def measure(task: str, way: str, seed: int, steps: int, priors: Path) -> Row:
    """Fine-tune a task's prior in one way; return the curves and the evaluation of the last policy."""
    torch.set_num_threads(1)
    setup, how = TASKS[task], WAYS[way]
    policy_class: Any
    reward_prior: Any  # whose log-probabilities are in the reward
    shipped = not setup.prior.endswith(".onnx")
    prior = load_policy(setup.prior if shipped else priors / setup.prior)
    settings = replace(fixed_settings(setup.env) if shipped else customize_defaults(prior), seed=seed, steps=steps)
    envs = AddonEnvs(setup.env, setup.addon, settings.envs, seed, prior.to_environment)
    weights = {"none": (0.0, 0.0), "own": (setup.omega, setup.alpha), "tied": (setup.omega, setup.omega)}[how.omega]
    if shipped:
        policy_class, reward_prior = KlAnchoredPolicy if how.kl_loss else "MlpPolicy", prior
        policy_kwargs = like(prior)
    else:
        policy_class = RepolicyActor
        policy_kwargs = {"start": prior, "how": how, "net_arch": {"pi": [], "vf": list(settings.hidden)}}
        reward_prior = SimpleNamespace(log_prob=prior.log_prob)  # scores actions before tanh, as the host stores them
    model = ResidualPPO(
        policy_class, Sb3Envs(envs), prior=reward_prior, copy_prior=False, omega=weights[0], alpha=weights[1],
        critic_warmup=round(0.05 * settings.iterations) if how.warmup else 0,
        kl_budget=setup.budget if how.budget else None, policy_kwargs=policy_kwargs, ent_coef=how.kl_loss,
        learning_rate=settings.learning_rate * how.rate, n_steps=settings.n_steps, batch_size=settings.minibatch,
        n_epochs=settings.epochs, gamma=settings.gamma, gae_lambda=settings.gae_lambda, vf_coef=0.5,
        target_kl=None, seed=seed, device="cpu",
    )  # fmt: skip
    if shipped:
        from_repolicy(prior, model)
        if how.kl_loss:
            object.__setattr__(model.policy, "anchor", copy.deepcopy(model.policy))  # not registered as a submodule
        model.policy.log_std.requires_grad_(not how.frozen_std)
    curves = Curves(envs)
    model.learn(steps, callback=curves)
    names = sorted({name for means in curves.iterations for name in means})
    row: Row = {"task": task, "way": way, "seed": seed, "curve": setup.curve}
    row |= {"iteration_steps": settings.iteration_steps}
    row["curves"] = {name: [means.get(name) for means in curves.iterations] for name in names}
    last = to_repolicy(model) if shipped else frozen(model.policy.actor)
    return row | {"end": evaluate_returns(last, setup.env, setup.addon)}


def draw_curves(found: campaign.Rows, path: Path) -> None:
    """Draw the basic reward over the steps: a panel per task, a line per way with the mean and range of its seeds."""
    import matplotlib.pyplot as plt
    import numpy as np

    rows = [*found.values()]
    tasks = [task for task in TASKS if any(row["task"] == task for row in rows)]
    figure, panels = plt.subplots(2, 2, figsize=(11, 7.6), layout="constrained")
    for panel, task in zip(panels.flat, tasks, strict=False):
        for way in WAYS:
            runs = [row for row in rows if (row["task"], row["way"]) == (task, way)]
            if not runs:
                continue
            curves = np.array([smooth_curve(row) for row in runs])  # [seeds, iterations]
            steps = runs[0]["iteration_steps"] * np.arange(1, curves.shape[1] + 1) / 1e6
            known = ~np.isnan(curves).any(0)
            steps, curves = steps[known], curves[:, known]
            [line] = panel.plot(steps, curves.mean(0), label=way, lw=2.2 if "residual" in way else 1.2)
            panel.fill_between(steps, curves.min(0), curves.max(0), color=line.get_color(), alpha=0.12)
        quantity = "basic reward a step" if TASKS[task].curve == "basic" else "basic return of an episode"
        panel.set(title=f"{task}, {TASKS[task].addon}", xlabel="million steps", ylabel=f"{quantity} (never read)")
        panel.spines[["top", "right"]].set_visible(False)
    for panel in panels.flat[len(tasks) :]:
        panel.set_axis_off()
    panels[1, 1].legend(*panels[0, 0].get_legend_handles_labels(), loc="center", frameon=False, fontsize=11)
    figure.savefig(path, dpi=100)


def measure_in_subprocess(*run: Any) -> Row:
    """Measure in a process of its own, because 128 robots hold 3 GB until their process ends."""
    with ProcessPoolExecutor(1, get_context("spawn"), die_with, (os.getpid(),)) as process:
        return process.submit(measure, *run).result()


@campaign.program(
    "ledger", tasks=[*TASKS], seeds=(0, 1, 2), steps=1_000_000, priors=Path("../shared/priors"), draw=draw_curves
)
def main(options: campaign.Options) -> campaign.Measurements:
    runs = [(task, way, seed, options.steps) for seed, task, way in product(options.seeds, options.tasks, WAYS)]
    return {"/".join(map(str, run)): partial(measure_in_subprocess, *run, options.priors) for run in runs}
