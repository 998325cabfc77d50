"""Nothing in a host's loop waits for the device: what would is counted on the CPU, where it costs nothing."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rsl_rl.runners import OnPolicyRunner
from runner_envs import OURS, Drift, settings
from runners import runner
from sb3_models import residual as sb3
from small import small_policy
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from two_processes import Push

from repolicy.hosts.method import HostRollout
from repolicy.policies.density import fit_density
from repolicy.policies.normalizer import Normalizer
from repolicy.priors.kinds import MeanPrior

OPERATIONS = {"_local_scalar_dense", "nonzero", "lift_fresh", "is_nonzero", "equal", "masked_select", "unique_dim"}
FUNCTIONS = {"item", "cpu", "numpy", "tolist", "__bool__", "__float__", "__int__", "__index__", "tensor", "from_numpy"}


class Waits(TorchDispatchMode):
    """Counts operations by name: those that would wait, and all."""

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.all = Counter[str](), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        picked = args[1] if name in ("index", "index_put_") else ()  # by truth: as many rows as are true
        self.waits[name] += name in OPERATIONS or any(part is not None and part.dtype == torch.bool for part in picked)
        self.all += not func.is_view and name != "detach"
        return func(*args, **(kwargs or {}))


class Calls(TorchFunctionMode):
    """Counts what is asked of tensors in Python."""

    def __init__(self, *more: str) -> None:
        super().__init__()
        self.waits, self.names = Counter[str](), {*FUNCTIONS, *more}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        self.waits[name] += name in self.names
        return func(*args, **(kwargs or {}))


def waits(work: Callable[[], Any]) -> tuple[int, int]:
    """How often a piece of work waits, by the stricter of two counts, and how many operations it takes."""
    with Waits() as below, Calls() as above:
        work()
    return max(below.waits.total(), above.waits.total()), below.all


PRIORS: dict[str, Any] = {
    "a file of ours": lambda: small_policy(hidden=(16, 16)),
    "a squashed file": lambda: small_policy(hidden=(16, 16), family="squashed"),
    "an object": Push,
    "a mean": lambda: MeanPrior(nn.Linear(3, 2), 0.5),
    "a checkpoint with a memory": lambda: "gru",
    "none": lambda: None,
}


@pytest.mark.parametrize("kind", PRIORS)
def test_a_step_of_rsl_rl_waits_for_nothing_and_an_iteration_once(
    kind: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Drift, "squashes", kind == "a squashed file", raising=False)
    prior, network = named(PRIORS[kind](), tmp_path)
    weights: dict[str, Any] = {"omega": 0.3, "alpha": 0.2} if prior is not None else {"omega": 0, "alpha": 0.2}
    weights |= {} if prior is not None else {"schedule": "fixed"}
    ours = runner(network, {"class_name": OURS, "prior": prior, "critic_warmup": 0} | weights)
    if prior is not None:
        states = torch.randn(500, 3)
        ours.alg.method.density = fit_density(states, Normalizer(3))
        ours.alg.method.steering.objective = ours.alg.steering.objective.__class__("addon", 0.3, 0.2, states=0.1)
    found = {}
    for name, each in {"theirs": runner(network, {"schedule": "fixed"}), "ours": ours}.items():
        each.learn(1)  # what is made once is made
        env, steps = Drift(), list[tuple[int, int]]()
        with torch.inference_mode():
            seen = env.get_observations()
            for _ in range(6):
                following = env.step(torch.zeros(8, 2))

                def step(alg: Any = each.alg, seen: Any = seen, following: Any = following) -> None:
                    alg.act(seen)
                    alg.process_env_step(*following)

                steps.append(waits(step))
                seen = following[0]
            ending = waits(lambda alg=each.alg, seen=seen: alg.compute_returns(seen))
        found[name] = steps, ending, waits(each.alg.update)
    for theirs, mine in zip(found["theirs"][0], found["ours"][0], strict=True):
        assert mine[0] == theirs[0]
        assert mine[1] <= theirs[1] + 10
    assert found["ours"][1][0] == found["theirs"][1][0] == 0
    minibatches = ours.alg.num_learning_epochs * ours.alg.num_mini_batches if ours.alg.adapts else 0
    assert found["ours"][2][0] <= found["theirs"][2][0] + 1 + minibatches  # after each it may end


@pytest.mark.filterwarnings("ignore:.*no-op")  # so says torch of a copy to meta
@pytest.mark.parametrize(
    ("kind", "actor"),
    [*((kind, "MLPModel") for kind in PRIORS), ("a file of ours", "repolicy.hosts.rsl_rl:PolicyActor")],
)
def test_a_rollout_stays_on_its_device_up_to_the_one_wait(
    kind: str, actor: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On `meta` there are shapes alone, and a tensor of another device is an error."""
    monkeypatch.setattr(Drift, "squashes", kind == "a squashed file", raising=False)
    prior, network = named(PRIORS[kind](), tmp_path)
    asked = {"class_name": OURS, "prior": prior, "critic_warmup": 0, "omega": 0.3 if prior is not None else 0}
    actor_class = {"class_name": actor} if network == "mlp" else {}
    config = settings(network, asked | {"alpha": 0.2, "limits": ["addon>=-1"]}, actor_class)
    env = Drift()
    started = OnPolicyRunner(env, config, None, "meta").alg
    started.train_mode()
    if prior is not None:
        started.method.density = fit_density(torch.randn(500, 3), Normalizer(3)).to("meta")
        started.method.steering.objective = started.steering.objective.__class__("addon", 0.3, 0.2, states=0.1)
    with torch.inference_mode():
        seen = env.get_observations().to("meta")
        for _ in range(6):
            started.act(seen)
            seen, rewards, ended, extras = env.step(torch.zeros(8, 2))
            told = {name: extras[name].to("meta") for name in ("time_outs", "addon")}
            started.process_env_step(seen.to("meta"), rewards.to("meta"), ended.to("meta"), told)
            seen = seen.to("meta")
        started.compute_returns(seen)
    storage = started.storage
    assert storage.returns.shape == storage.rewards.shape == storage.advantages.shape == (6, 8, 1)
    assert {part.device.type for part in (storage.returns, storage.rewards, started.method.scale.mean)} == {"meta"}
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):  # here it would wait
        started.method.iteration_metrics()


@pytest.mark.parametrize("kind", ["a file of ours", "an object", "a mean"])
def test_a_rollout_of_stable_baselines3_is_copied_once(kind: str) -> None:
    from sb3_models import Drift as Other

    model = sb3(env=DummyVecEnv([Other] * 4), prior=PRIORS[kind](), policy_kwargs={}, copy_prior=False)
    ended, task, no_limits = torch.zeros(8, 4, dtype=torch.bool), torch.randn(8, 4), torch.zeros(0, 8, 4)
    states, actions = torch.randn(8, 4, 3), torch.randn(8, 4, 2)
    seen = HostRollout(states, actions, task, task, ended, ended, lambda: states, no_limits, gamma=0.99)
    with Calls("to") as calls:
        model.method.reward(seen)
    assert calls.waits.total() == 1


def named(prior: Any, folder: Any) -> tuple[Any, str]:
    """A prior as it is given, or the file of a network of rsl_rl's own, and the network that fits it."""
    if not isinstance(prior, str):
        return prior, "mlp"
    runner(prior).save(folder / "prior.pt")
    return str(folder / "prior.pt"), prior
