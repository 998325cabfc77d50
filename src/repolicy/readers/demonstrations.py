"""Read recorded observations and actions from an .npz file or a Minari dataset. No pickle is run."""

import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from repolicy.errors import FileError, UsageError, describe_error, in_one_sentence
from repolicy.readers.pickles import check_unpacked_size

MIN_STEPS = 100


@dataclass(frozen=True)
class Demonstrations:
    """M recorded steps in the order of time."""

    name: str
    observations: Tensor  # [M, O]
    actions: Tensor  # [M, A], floats, or choices as int64 in the environment's own numbers
    ended: Tensor | None  # [M], whether an episode ended after the step, if known
    env: str | None = None  # the environment of the recording, if known
    first: tuple[float, ...] = ()  # number of each action's first choice, if known not to be 0

    @property
    def discrete(self) -> bool:
        return self.actions.dtype == torch.int64


def read_demonstrations(reference: str | Path) -> Demonstrations:
    """Read an .npz file (arrays `observations`, `actions` and optionally `ended`) or a Minari dataset."""
    path = Path(reference)
    if path.is_file() or path.suffix == ".npz":
        arrays = read_npz(path, ("observations", "actions"), ("ended",))
        return _checked(str(path), arrays["observations"], arrays["actions"], arrays.get("ended"))
    return _minari(str(reference))


def read_npz(path: Path, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    """Return arrays of an .npz file; refuse one that is damaged, holds pickles, or would unpack to too many bytes."""
    if not path.is_file():
        raise FileError(f"there is no file {path}")
    if not zipfile.is_zipfile(path):
        raise FileError(f"{path} is no whole .npz file; save {', '.join(needed)} with np.savez")
    try:
        with np.load(path, allow_pickle=False) as file:
            check_unpacked_size(file.zip, path.stat().st_size)
            arrays = {name: file[name] for name in (*needed, *optional) if name in file.files}
            names = ", ".join(file.files) or "nothing"
    except FileError:
        raise
    except Exception as error:  # NumPy's, zipfile's, zlib's and tokenize's, of many classes
        if "allow_pickle" in str(error):
            raise FileError(f"{path} holds pickled objects, which are not run; save plain arrays of numbers") from None
        raise FileError(f"{path} is damaged, or no .npz file: {describe_error(error)}") from None
    for name in needed:
        if name not in arrays:
            raise FileError(f"{path} has no array {name!r} (it has {names}); it needs {', '.join(needed)}")
        if not isinstance(arrays[name], np.ndarray):  # NumPy returns the bytes of an entry that is no array
            raise FileError(f"{path} is damaged: {name} are no array")
    return arrays


def _minari(name: str) -> Demonstrations:
    try:
        import minari
    except ImportError:
        raise UsageError(f"there is no file {name}; for a Minari dataset, pip install 'minari[hdf5]'") from None
    with in_one_sentence(f"the Minari dataset {name!r} cannot be read", FileError):
        data = minari.load_dataset(name)
        observations, actions, ended = [], [], []
        for episode in data.iterate_episodes():
            if not isinstance(episode.observations, np.ndarray):
                raise FileError(f"the Minari dataset {name!r} has observations that are no plain arrays")
            taken = np.asarray(episode.actions)
            observations.append(episode.observations[: len(taken)])  # without the last observation, which has no action
            actions.append(taken)
            ended.append(np.arange(len(taken)) == len(taken) - 1)
        rows = [np.concatenate(parts) for parts in (observations, actions, ended)]
    demonstrations = _checked(name, *rows)
    first = np.ravel(getattr(data.action_space, "start", 0))
    first_choices = tuple(map(float, first)) if first.any() else ()
    return replace(demonstrations, env=getattr(data.env_spec, "id", None), first=first_choices)


def _checked(name: str, observations: np.ndarray, actions: np.ndarray, ended: np.ndarray | None) -> Demonstrations:
    """Check the arrays, and return them as tensors."""
    for what, values in (("observations", observations), ("actions", actions)):
        if values.dtype.kind not in "fiub" or values.ndim == 0 or not values.size:
            raise FileError(f"{name}: {what} are no rows of numbers, but {values.dtype} of shape {list(values.shape)}")
    if len(observations) != len(actions):
        message = f"{name}: it has {len(observations):,} observations and {len(actions):,} actions"
        if len(observations) > len(actions):
            message += "; leave out the last observation of each episode, after which nobody acted"
        raise FileError(message)
    if len(actions) < MIN_STEPS:
        raise FileError(f"{name}: {len(actions):,} steps are too few to learn from; it needs {MIN_STEPS} or more")
    discrete = actions.dtype.kind in "iub"
    rows = observations.reshape(len(observations), -1).astype(np.float32)
    taken = actions.reshape(len(actions), -1).astype(np.int64 if discrete else np.float32)
    for what, array in (("observations", rows), ("actions", taken)):
        if len(bad := np.argwhere(~np.isfinite(array))):
            raise FileError(f"{name}: {what} have {len(bad):,} numbers that are not finite, first in row {bad[0][0]}")
    has_ended = None
    if ended is not None:  # each is a truth value, or a number that is 0 or not
        if ended.dtype.kind not in "biuf" or not np.isfinite(ended).all() or ended.size != len(taken):
            raise FileError(f"{name}: ended are no {len(taken):,} numbers, 1 after each step that ended an episode")
        has_ended = torch.from_numpy(ended.reshape(-1).astype(bool))
    return Demonstrations(name, torch.from_numpy(rows), torch.from_numpy(taken), has_ended)
