"""Files of several libraries, as these write them."""

import io
import itertools
import pickle
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from comparing import random, stirred
from torch import Tensor, nn


def mlp(sizes: tuple[int, ...], activation: type[nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), activation()]
    return nn.Sequential(*layers[:-1])


def named(prefix: str, module: nn.Module) -> dict[str, torch.Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in module.state_dict().items()}


def saved(path: Path, kept: Any) -> Path:
    torch.save(kept, path)
    return path


class Agent(nn.Module):
    """The model of CleanRL's script for PPO with continuous actions, as it is published there."""

    def __init__(self, size: int, actions: int) -> None:
        super().__init__()
        self.critic = mlp((size, 64, 64, 1), nn.Tanh)
        self.actor_mean = mlp((size, 64, 64, actions), nn.Tanh)
        self.actor_logstd = nn.Parameter(torch.zeros(1, actions))

    def log_prob(self, x: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        mean = self.actor_mean(x)
        return torch.distributions.Normal(mean, self.actor_logstd.expand_as(mean).exp()).log_prob(action).sum(1)


def brax_file(path: Path, **more: Any) -> Path:
    layers = {"hidden_0": {"kernel": random(5, 4), "bias": random(4)}}
    layers |= {"hidden_1": {"kernel": random(4, 6), "bias": random(6)}} | more
    path.write_bytes(pickle.dumps((0, {"params": layers})))
    return path


def dense(layer: dict[str, Any], inputs: Tensor) -> Tensor:
    """A layer of Flax's, in double precision."""
    return inputs.double() @ torch.as_tensor(layer["kernel"]).double() + torch.as_tensor(layer["bias"]).double()


def brax_body(layers: dict[str, Any], inputs: Tensor, count: int, activation: Any = nn.functional.silu) -> Tensor:
    """The first layers of Brax's network, with LayerNorms where there are some."""
    for i in range(count):
        inputs = activation(dense(layers[f"hidden_{i}"], inputs))
        if norm := layers.get(f"LayerNorm_{i}"):
            weight, bias = (torch.as_tensor(norm[part]).double() for part in ("scale", "bias"))
            inputs = nn.functional.layer_norm(inputs, inputs.shape[1:], weight, bias, 1e-6)
    return inputs


def class_named(monkeypatch: pytest.MonkeyPatch, name: str) -> Any:
    """A class that pickles under the name of one of a library that is not here."""
    module, _, last = name.rpartition(".")
    kind = type(last, (), {"__module__": module})
    for parent in itertools.accumulate(module.split("."), "{}.{}".format):
        monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
    setattr(sys.modules[module], last, kind)
    return kind


class Seen:
    """Running statistics: a pickle of it holds its attributes."""

    def __init__(self, **state: Any) -> None:
        self.__dict__ = state


def with_entry(archive: zipfile.ZipFile, ending: str, change: Any, compress: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compress) as new:
        for name in archive.namelist():
            content = archive.read(name)
            new.writestr(name, change(content) if name.endswith(ending) else content)
    return buffer.getvalue()


def squashed(*heads: str) -> dict[str, torch.Tensor]:
    """The tensors of CleanRL's squashed policies, with these heads."""
    state = {"action_scale": torch.ones(2), "action_bias": torch.zeros(2)}
    for name, sizes in ({"fc1": (5, 8), "fc2": (8, 8)} | dict.fromkeys(heads, (8, 2))).items():
        state |= named(name, nn.Linear(*sizes))
    return state


def settings(folder: Path, text: str) -> None:
    """What Isaac Lab writes beside a checkpoint."""
    (folder / "params").mkdir(exist_ok=True)
    (folder / "params" / "agent.yaml").write_text(f"seed: 42\npolicy:\n{text}")


def seen_by_rsl_rl(obs: Tensor, kind: str, **more: Any) -> tuple[Any, Any]:
    """A model of rsl_rl 5 whose normalizer has seen these observations, and what it takes."""
    models, tensordict = pytest.importorskip("rsl_rl.models"), pytest.importorskip("tensordict")
    groups, distribution = tensordict.TensorDict({"policy": obs}, batch_size=[len(obs)]), {"class_name": kind} | more
    actor = models.MLPModel(
        groups, {"s": ["policy"]}, "s", 2, [8, 7], "elu", obs_normalization=True, distribution_cfg=distribution
    )
    stirred(actor).train()
    actor.update_normalization(groups)
    return actor.eval(), groups
