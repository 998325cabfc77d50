"""The command that makes a prior of demonstrations."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Imitate:
    """Fit a policy with a std to recorded observations and actions, as a prior to customize.

    Example: repolicy imitate demos.npz --env HalfCheetah-v4 --out imitated.safetensors
    """

    data: Positional[Annotated[str, arg(metavar="DATA")]]
    """An .npz file with observations [M, O] and actions [M, A], or the name of a Minari dataset."""
    env: str | None = None
    """Environment to check the sizes with and to try the policy in; customize then goes on there."""
    hidden: tuple[int, ...] = (256, 256)
    """Sizes of the hidden layers."""
    state_std: bool = False
    """A std that depends on the state, in place of one for all states."""
    seed: int = 0
    """Seed of the network and of what is held out."""
    out: Path = Path("imitated.safetensors")
    """The policy's file."""
    json: bool = False
    """Print one JSON object on stdout."""

    def run(self) -> dict[str, Any]:
        from repolicy.plan.imitation import imitate
        from repolicy.runs.ranks import one_thread
        from repolicy.runs.terminal import Terminal

        terminal = Terminal()
        with one_thread(), terminal.status("fitting") as status:
            result = imitate(
                self.data, self.out, env=self.env, hidden=self.hidden, state_std=self.state_std, seed=self.seed,
                say=terminal.say,
                progress=lambda epoch, held: status.update(f"fitting: epoch {epoch}, held out {held:.4g} nats a step"),
            )  # fmt: skip
        terminal.say(f"its file: {result.file}; go on with repolicy customize {result.file} --addon ...")
        values = {"file": str(result.file), "env": result.env} | asdict(result.fitted)
        return values | (
            {} if result.returns is None else {"return": {"mean": result.returns[0], "std": result.returns[1]}}
        )
