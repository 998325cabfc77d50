"""Runs and policies on disk: atomic to write, safe to read, resumable to the bit.

Every file is safetensors: numbers as tensors, everything else as JSON in the header, with a checksum over both. It is
written beside its place and renamed into it, so at any instant there is either the old file or the new one.
"""

import contextlib
import fcntl
import hashlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from repolicy.errors import FileError, UsageError
from repolicy.loading import nearest
from repolicy.policy import Policy, PolicySpec, frozen

PRIORS = Path(__file__).parent / "priors"
FORMAT = 1
PROBES = 64


# Any file -------------------------------------------------------------------------------------------------------------


def write(path: Path, kind: str, tensors: dict[str, Tensor], story: dict[str, Any]) -> None:
    """Tensors and a JSON story in one file, atomically."""
    tensors = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    story = {"format": FORMAT, "kind": kind} | story
    story["sha256"] = _checksum(tensors, story)
    write_bytes(path, safetensors.torch.save(tensors, {"repolicy": json.dumps(story)}))


def read(path: Path, kind: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write` wrote, of that kind or of any, or one sentence about what is wrong with the file."""
    if not path.is_file():
        raise FileError(f"there is no file {path}")
    try:
        with safetensors.safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        story = json.loads(metadata["repolicy"])
    except KeyError:
        raise FileError(f"{path} is a safetensors file, but not one of Repolicy's") from None
    except (safetensors.SafetensorError, ValueError, OSError) as error:
        raise FileError(f"{path} is damaged, or no Repolicy file: {error}") from None
    if not isinstance(story, dict):
        raise FileError(f"{path} is damaged, or no Repolicy file: its story is no object")
    if isinstance(story.get("format"), int) and story["format"] > FORMAT:
        raise FileError(f"{path} has format {story['format']}; this version reads up to {FORMAT}: upgrade repolicy")
    if story.pop("sha256", None) != _checksum(tensors, story):
        raise FileError(f"{path} is damaged: its checksum does not match its contents")
    if kind and story["kind"] != kind:
        raise FileError(f"{path} is a {story['kind']}, not a {kind}")
    return tensors, story


def write_bytes(path: Path, content: bytes) -> None:
    """Beside its place, flushed to the disk, and renamed into it."""
    if path.exists() and not path.is_file():  # a rename would put a file in the place of /dev/null
        raise FileError(f"{path} is no file that could be written; choose another name")
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise FileError(f"{path} cannot be written: {error.strerror}; what was there before is untouched") from None


def write_json(path: Path, values: Any) -> None:
    write_bytes(path, (json.dumps(finite(values), indent=2) + "\n").encode())


def finite(value: Any) -> Any:
    """The same with null for numbers that are not finite, which JSON does not know."""
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _checksum(tensors: dict[str, Tensor], story: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(story, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        digest.update(tensors[name].contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


# Policies -------------------------------------------------------------------------------------------------------------


class SavedPolicy(NamedTuple):
    """A policy's file: the policy, the prior that it was customised from, and its story."""

    policy: Policy
    prior: Policy | None
    card: dict[str, Any]


def save_policy(path: str | Path, policy: Policy, card: dict[str, Any], prior: Policy | None = None) -> None:
    """One self-contained file: weights, normaliser, probes to recognise the policy by, and the same of its prior."""
    tensors = _policy_tensors(policy, "policy")
    story = {"policy": policy.spec.as_dict(), "card": card}
    if prior is not None:
        tensors |= _policy_tensors(prior, "prior")
        story["prior"] = prior.spec.as_dict()
    write(Path(path), "policy", tensors, story)


def read_policy(path: str | Path) -> SavedPolicy:
    """A policy's file; refused unless the policy reproduces the log-probabilities that were stored with it."""
    tensors, story = read(Path(path), "policy")
    try:
        policies = [_rebuilt(Path(path), tensors, story, name) for name in ("policy", "prior") if name in story]
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise FileError(f"{path} is no whole policy: {str(error).splitlines()[0]}") from None
    return SavedPolicy(policies[0], policies[1] if policies[1:] else None, story["card"])


def load_policy(reference: str | Path) -> Policy:
    """The policy in a file, in a run's folder (its best), or that ships under a name."""
    return read_policy(find_policy(reference)).policy


def read_card(path: Path) -> dict[str, Any]:
    """The story that a policy's file tells, and nothing else of it."""
    return dict(read(path, "policy")[1]["card"])


def env_of(card: dict[str, Any], path: Path) -> str:
    """The environment that the policy in a file was made for."""
    found = card.get("request", {}).get("env")
    if found is None:
        raise UsageError(f"{path} does not say which environment it is for; name one with --env")
    return str(found)


def find_policy(reference: str | Path) -> Path:
    """A file as it is; of a run's folder, its best policy; of a name, the prior that ships under it."""
    path = Path(reference)
    if path.is_dir() and (path / "run.json").exists():
        best = RunFolder(path).best_policy
        if not best.exists():
            raise FileError(f"{path} has no policy yet: its first segment is not done")
        return best
    if path.is_file():
        return path
    if str(reference) in shipped():
        return PRIORS / f"{reference}.safetensors"
    if path.is_dir():
        raise FileError(f"{path} is a folder without a run; name a policy's file in it")
    raise FileError(
        f"there is no file {path}, and no policy of that name ships with repolicy "
        f"({', '.join(shipped())} do){nearest(str(reference), shipped())}"
    )


def shipped() -> list[str]:
    """The names of the priors that ship."""
    return sorted(path.stem for path in PRIORS.glob("*.safetensors"))


def _policy_tensors(policy: Policy, name: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(PROBES, policy.spec.observation_size, generator=generator)
    observations = (policy.normaliser.mean + policy.normaliser.var.sqrt() * noise).float()
    with torch.no_grad():
        actions = policy(observations).sample(generator)
    probes = {"observations": observations, "actions": actions, "log_probs": policy.log_prob(observations, actions)}
    return {f"{name}.{key}": value for key, value in policy.state_dict().items()} | {
        f"{name}_probes.{key}": value for key, value in probes.items()
    }


def _rebuilt(path: Path, tensors: dict[str, Tensor], story: dict[str, Any], name: str) -> Policy:
    policy = Policy(PolicySpec.from_dict(story[name]))
    policy.load_state_dict(
        {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
    )
    probes = {key: tensors[f"{name}_probes.{key}"] for key in ("observations", "actions", "log_probs")}
    check_fingerprint(policy, probes, f"the {name} in {path}")
    return frozen(policy)


def check_fingerprint(policy: Policy, probes: dict[str, Tensor], who: str) -> None:
    """A policy that was loaded must give the log-probabilities that it gave when it was saved."""
    found, stored = policy.log_prob(probes["observations"], probes["actions"]), probes["log_probs"]
    worst = float((found - stored).abs().max())
    if worst <= 1e-3 * (1.0 + float(stored.abs().max())):
        return
    offset = (found - stored).mean()
    constant = float((found - stored - offset).abs().max()) < 0.01 * worst
    cause = "the std or the scale of actions" if constant else "the observation normaliser or the weights"
    raise FileError(
        f"{who} does not reproduce its own log-probabilities (off by {worst:.3g}); the likely cause is {cause}"
    )


# A run's folder -------------------------------------------------------------------------------------------------------


class RunFolder:
    """What a run leaves behind: enough to resume, plot, render and repeat it.

    run.json               what was asked for, and the versions that ran
    metrics.jsonl          a line an iteration
    checkpoints/           the last two segments' ends
    policy.safetensors     the policy at the end of the last segment
    best.safetensors       the policy of the best segment, by the objective's own return
    prior.safetensors      a copy of the prior, where there is one
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.metrics = self.path / "metrics.jsonl"
        self.last_policy = self.path / "policy.safetensors"
        self.best_policy = self.path / "best.safetensors"
        self.prior = self.path / "prior.safetensors"
        self._checkpoints = self.path / "checkpoints"

    def request(self) -> dict[str, Any] | None:
        """What the run in this folder was asked for, or None if there is none."""
        try:
            return json.loads((self.path / "run.json").read_text())["request"]  # type: ignore[no-any-return]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError) as error:
            raise FileError(f"{self.path / 'run.json'} cannot be read: {error}") from None

    def begin(self, request: dict[str, Any], versions: dict[str, str], resume: bool, prior: Path | None = None) -> None:
        """Claim the folder for this request, with a copy of its prior; refuse where that would lose or mix anything."""
        before = self.request()
        if before is None:
            self._check_free(prior)
            if prior is not None:
                write_bytes(self.prior, prior.read_bytes())
            write_json(self.path / "run.json", {"format": FORMAT, "request": request, "versions": versions})
            return
        if not resume:
            raise UsageError(f"{self.path} holds a run already; add --resume to go on with it, or choose another --out")
        changes = list(changed(before, json.loads(json.dumps(request))))
        if changes:
            raise UsageError(f"{self.path} cannot be resumed with other settings: {'; '.join(changes)}")

    def _check_free(self, prior: Path | None) -> None:
        """Raise where a run would write over files that are not its own."""
        mine = [self.metrics, self.last_policy, self.best_policy, self._checkpoints, self.path / "report.html"]
        found = [path for path in [*mine, self.path / "sweep.json"] if path.exists()]
        if self.prior.exists() and (prior is None or self.prior.read_bytes() != prior.read_bytes()):
            found.append(self.prior)
        if found:
            raise UsageError(f"{found[0]} is there already, and of no run in {self.path}; choose another --out")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One run at a time. The lock goes with the process that holds it, however that ends."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = open(self.path / ".lock", "w")  # noqa: SIM115
        except OSError as error:
            raise FileError(f"{self.path} cannot be used as a run's folder: {error.strerror}") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise FileError(f"another run is at work in {self.path}; choose another --out") from None
            yield

    def save(self, segment: int, tensors: dict[str, Tensor], story: dict[str, Any]) -> None:
        """The end of a segment; of older ones, one is kept in case this one is damaged."""
        write(self._checkpoints / f"{segment:06d}.safetensors", "checkpoint", tensors, {"segment": segment} | story)
        for old in self._files()[2:]:
            old.unlink(missing_ok=True)

    def latest(self) -> tuple[dict[str, Tensor], dict[str, Any], list[str]] | None:
        """The newest checkpoint that is whole, with a sentence about each that is not; None if there is none."""
        complaints = []
        for path in self._files():
            try:
                tensors, story = read(path, "checkpoint")
            except FileError as error:
                complaints.append(f"{error}; going on from the one before")
                continue
            return tensors, story, complaints
        if complaints:
            raise FileError(
                "; ".join(complaints).replace("; going on from the one before", "") + "; there is no other checkpoint"
            )
        return None

    def log(self, metrics: dict[str, float]) -> None:
        """Add a line to the metrics."""
        try:
            with open(self.metrics, "a") as file:
                file.write(json.dumps(finite(metrics)) + "\n")
        except OSError as error:
            raise FileError(f"{self.metrics} cannot be written: {error.strerror}") from None

    def logged(self) -> dict[str, list[Any]]:
        """The metrics as columns; None where an iteration has no such entry."""
        if not self.metrics.exists():
            return {}
        rows = [json.loads(line) for line in self.metrics.read_text().splitlines()]
        names = {name: None for row in rows for name in row}
        return {name: [row.get(name) for row in rows] for name in names}

    def forget_after(self, iteration: int) -> None:
        """Drop the metrics of iterations that are about to be done again."""
        if not self.metrics.exists():
            return
        kept = []
        for line in self.metrics.read_text().splitlines():
            try:
                if json.loads(line)["iteration"] <= iteration:
                    kept.append(line + "\n")
            except ValueError:
                continue  # the line that was being written when the run was killed
        write_bytes(self.metrics, "".join(kept).encode())

    def _files(self) -> list[Path]:
        return sorted(self._checkpoints.glob("[0-9]*.safetensors"), reverse=True)


def changed(before: Any, after: Any, name: str = "") -> Iterator[str]:
    """`steps was 100 and is now 200`, for each difference between two nested requests."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before | after:
            yield from changed(before.get(key), after.get(key), key)
    elif before != after:
        yield f"{name} was {before} and is now {after}"
