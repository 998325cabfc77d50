"""TorchScript runs as it is, and agrees with PyTorch, memory included."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from comparing import STD, assert_equal, observations, placed, stirred
from made_graphs import script
from other_policies import Around
from torch import Tensor, nn

from repolicy.errors import UsageError
from repolicy.priors.opening import open_policy
from repolicy.priors.running import Script
from repolicy.readers.recognize import PolicyFile


class Recurrent(nn.Module):
    """As robots' makers export it: an LSTM whose state is in buffers."""

    hidden_state: Tensor
    cell_state: Tensor

    def __init__(self, layers: int = 1) -> None:
        super().__init__()
        self.memory, self.last = nn.LSTM(5, 8, layers), nn.Linear(8, 3)
        self.register_buffer("hidden_state", torch.zeros(layers, 1, 8))
        self.register_buffer("cell_state", torch.zeros(layers, 1, 8))

    def forward(self, x: Tensor) -> Tensor:
        out, (h, c) = self.memory(x.unsqueeze(0), (self.hidden_state, self.cell_state))
        self.hidden_state[:] = h
        self.cell_state[:] = c
        return self.last(out.squeeze(0))

    @torch.jit.export
    def reset_memory(self) -> None:
        self.hidden_state[:] = 0.0
        self.cell_state[:] = 0.0


class Renewed(Recurrent):
    """The same with new tensors in each step. Those at the start are equal, and the compiler makes them one."""

    def forward(self, x: Tensor) -> Tensor:
        out, (self.hidden_state, self.cell_state) = self.memory(x.unsqueeze(0), (self.hidden_state, self.cell_state))
        return self.last(out.squeeze(0))

    @torch.jit.export
    def reset_memory(self) -> None:
        self.hidden_state = torch.zeros(1, 1, 8)
        self.cell_state = torch.zeros(1, 1, 8)


class ByHand(nn.Module):
    """A memory without an axis of rows: it cannot run two environments at a time."""

    sum: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sum", torch.zeros(5))
        self.last = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.sum += x[0]
        return self.last(self.sum).unsqueeze(0)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.float16])
def test_torchscript_runs_where_it_is_trusted_in_its_own_precision(kind: torch.dtype, tmp_path: Path) -> None:
    module, obs = stirred(Around()).to(kind), observations(5)
    path = script(tmp_path / "policy.pt", module, 5)
    with pytest.raises(UsageError, match=r"; it is TorchScript, a program, .*add --trust \(in Python, trust=True\)"):
        open_policy(path, STD)
    prior = placed(path, 5, 3, trust=True)
    assert not prior.has_memory
    assert_equal(prior.distribution(obs).mode(), module(obs.to(kind)))


class Later(Recurrent):
    """Its start has the name that it has since rsl_rl 5.5."""

    reset_memory = None

    @torch.jit.export
    def reset(self) -> None:
        self.hidden_state[:] = 0.0
        self.cell_state[:] = 0.0


@pytest.mark.parametrize("module", [Recurrent(), Recurrent(layers=2), Renewed(), Later()])
def test_an_lstm_remembers_each_episode_of_its_own(module: Recurrent, tmp_path: Path) -> None:
    """Against PyTorch's LSTM over each episode as one sequence."""
    stirred(module)
    module(torch.randn(1, 5))  # it was saved in the middle of an episode
    path = script(tmp_path / "policy.pt", module, 5)
    prior = placed(path, 5, 3, trust=True)
    assert prior.has_memory
    steps, ended = torch.randn(9, 4, 5), torch.zeros(9, 4, dtype=torch.bool)
    ended[3, 0] = ended[0, 2] = ended[6, 2] = True
    first, state = prior.follow(steps[:5], ended[:5], None)
    second, _ = prior.follow(steps[5:], ended[5:], state)
    found = torch.cat([first.mode(), second.mode()])
    for n in range(4):
        starts = [0, *(np.flatnonzero(ended[:, n]) + 1).tolist(), 9]
        for start, end in itertools.pairwise(starts):
            wanted = module.last(module.memory(steps[start:end, n : n + 1])[0])[:, 0]
            torch.testing.assert_close(found[start:end, n], wanted, atol=1e-5, rtol=1e-4)
    again, _ = prior.for_spaces(5, prior.actions).follow(steps[:5], ended[:5], None)
    assert torch.equal(again.mode(), first.mode())
    fast, slow = Script(PolicyFile(path)), Script(PolicyFile(path))
    assert fast.prepare(5)
    assert not fast._runs_row_by_row  # rows are kept apart, so that they run together
    slow.prepare(5)
    slow._runs_row_by_row = True
    state = fast.begin(4)
    for rows in steps:
        a, after = fast.step(rows.numpy(), state)
        b, same = slow.step(rows.numpy(), state)
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(after["cell_state"], same["cell_state"], atol=1e-5, rtol=1e-4)
        state = after


def test_a_memory_without_rows_runs_row_by_row(tmp_path: Path) -> None:
    module = stirred(ByHand())
    prior = placed(script(tmp_path / "policy.pt", module, 5), 5, 3, trust=True)
    steps = torch.randn(4, 3, 5)
    for _ in range(2):  # a run begins with it several times
        prior = prior.for_spaces(5, prior.actions)
        found = prior.follow(steps, torch.zeros(4, 3, dtype=torch.bool), None)[0].mode()
        torch.testing.assert_close(found, module.last(steps.cumsum(0)), atol=1e-5, rtol=1e-5)


def test_a_memory_that_changes_late_is_each_environments_own(tmp_path: Path) -> None:
    class Late(nn.Module):
        count: Tensor
        kept: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1, 1))
            self.register_buffer("kept", torch.zeros(1, 5))
            self.last = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            self.kept = torch.where(self.count < 3.0, self.kept, self.kept + x)
            self.count = self.count + 1.0
            return self.last(self.kept + x)

    module, steps = stirred(Late()), torch.randn(6, 4, 5)
    prior = placed(script(tmp_path / "policy.pt", module, 5), 5, 3, trust=True)
    found = prior.follow(steps, torch.zeros(6, 4, dtype=torch.bool), None)[0].mode()
    steps[3:] += steps[3:].cumsum(0)  # what is kept is added from the fourth step on
    torch.testing.assert_close(found, module.last(steps), atol=1e-5, rtol=1e-5)


def test_a_state_that_nobody_can_see_is_refused(tmp_path: Path) -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.count = nn.Linear(5, 3), 0

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            return self.last(x) * self.count

    with pytest.raises(UsageError, match="its state is not in its buffers"):
        placed(script(tmp_path / "policy.pt", Counts(), 5), 5, 3, trust=True)
