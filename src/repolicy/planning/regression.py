"""Networks that are fitted by least squares, as functions of NumPy arrays."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from repolicy.policies import Mlp

MINIBATCH, LEARNING_RATE = 512, 1e-2  # at first; it falls to 0

Function = Callable[[np.ndarray], np.ndarray]


def regression(inputs: Tensor, targets: np.ndarray, hidden: tuple[int, ...], epochs: int, seed: int) -> Function:
    """Return a network's fit of targets `[M, D]` at inputs `[M, I]`: from inputs `[B, I]` to `[B, D]`."""
    middle, width = targets.mean(0), np.maximum(targets.std(0), 1e-12)
    wanted = torch.from_numpy((targets - middle) / width).float()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Mlp(inputs.shape[1], hidden, targets.shape[1])
        optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)
        order = [rows for _ in range(epochs) for rows in torch.randperm(len(inputs)).split(MINIBATCH)]
        falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, len(order))
        for rows in order:
            loss = (network(inputs[rows]) - wanted[rows]).square().mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            falling.step()
    run = network.snapshot()

    def fitted(rows: np.ndarray) -> np.ndarray:
        found: np.ndarray = middle + width * run(rows).astype(np.float64)
        return found

    return fitted
