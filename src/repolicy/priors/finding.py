"""Find the file of a policy that is named by a file, a folder, or a name: shipped, on the shelf, or on the hub."""

import hashlib
import http.client
import os
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from repolicy.errors import FileError, UsageError
from repolicy.files import file_sum, write_bytes
from repolicy.policies.storage import is_repolicy_file
from repolicy.priors.hub import DOWNLOADED, download_policy, is_on_hub
from repolicy.text import suggest

MAX_DOWNLOAD = 64 * 2**20  # bytes
PLAYGROUND = ("google-deepmind/mujoco_playground", "d5e6b475")  # Apache-2.0
ZOO = ("DLR-RM/rl-trained-agents", "cd35bde6")  # MIT


@dataclass(frozen=True)
class Published:
    """An entry of the shelf: a policy that others have published, which is downloaded when it is needed."""

    source: tuple[str, str]  # repository and commit
    env: str
    files: dict[str, tuple[str, str]]  # name in the cache -> (path in the repository, sha256); the policy is first


SHELF = {
    "playground:go1": Published(PLAYGROUND, "Go1JoystickFlatTerrain-v1", {
        "policy.onnx": ("mujoco_playground/experimental/sim2sim/onnx/go1_policy.onnx",
                        "386cde6a1eac679e2f2a313ade2b395d9f26905b151ee3b019c2c4163d49b6f2"),
    }),
    "playground:berkeley": Published(PLAYGROUND, "BerkeleyHumanoidJoystickFlatTerrain-v1", {
        "policy.onnx": ("mujoco_playground/experimental/sim2sim/onnx/bh_policy.onnx",
                        "ab83d4a2853c581a0d761e45e61b586f529f9bc1504d190037369f47e4e69892"),
    }),
    "zoo:ppo-halfcheetah": Published(ZOO, "HalfCheetah-v4", {
        "policy.zip": ("ppo/HalfCheetah-v3_1/HalfCheetah-v3.zip",
                       "9355d4bbf5ec376928a04d932da06ad4d9853e7c6fb31e18cf33402b35b8c928"),
        "policy.vecnormalize.pkl": ("ppo/HalfCheetah-v3_1/HalfCheetah-v3/vecnormalize.pkl",
                                    "3cf58648c8d025a8d56142ca9599d95672ae546b3c2b058a2891f36de463652b"),
    }),
    "zoo:trpo-hopper": Published(ZOO, "Hopper-v4", {
        "policy.zip": ("trpo/Hopper-v3_1/Hopper-v3.zip",
                       "52292e4366187719727d6dccdae5724df2149c10483406a2d6720ea7faf699a0"),
        "policy.vecnormalize.pkl": ("trpo/Hopper-v3_1/Hopper-v3/vecnormalize.pkl",
                                    "f95440afd44144879010e2cd27fe4038875637cae43d03ea3540d8228c3304cd"),
    }),
    "zoo:sac-hopper": Published(ZOO, "Hopper-v4", {
        "policy.zip": ("sac/Hopper-v3_1/Hopper-v3.zip",
                       "0825339a734891abbf0d1917f38092729e68cca58b1102de7c520a65648ec1e0"),
    }),
    "zoo:ppo-cartpole": Published(ZOO, "CartPole-v1", {
        "policy.zip": ("ppo/CartPole-v1_1/CartPole-v1.zip",
                       "83d0de1280428dbfe8b1d4db5b4ae8450e8b137759a454eed5149a7a995228c2"),
    }),
}  # fmt: skip
SHELVES = {name.partition(":")[0] for name in SHELF}


def cache_folder(name: str = "shelf") -> Path:
    """Return one of Repolicy's folders in the user's cache, for files that can be restored."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "repolicy" / name


def cached_policy(name: str) -> Path:
    return cache_folder() / name.replace(":", "-") / next(iter(SHELF[name].files))


def shelf_entry(path: str | Path) -> Published | None:
    """Return the entry of the shelf with this name, or whose file in the cache this is."""
    for name, published in SHELF.items():
        if str(path) in (name, str(cached_policy(name))):
            return published
    return None


def fetch_published(name: str, download: Callable[[str], bytes] | None = None) -> Path:
    """Return the policy's file in the cache. Download what is not there yet, and check the sha256 of every file."""
    published = SHELF[name]
    repository, commit = published.source
    for file, (path, sha256) in published.files.items():
        cached = cached_policy(name).with_name(file)
        if cached.exists():
            if file_sum(cached) != sha256:
                raise FileError(f"{cached} is not the file that {name} names: its sha256 differs; remove it")
            continue
        remedy = f"put {path} of {repository} at commit {commit} at {cached}"
        try:
            content = (download or _download)(f"https://raw.githubusercontent.com/{repository}/{commit}/{path}")
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise FileError(f"{name} cannot be fetched ({reason}); {remedy}") from None
        if hashlib.sha256(content).hexdigest() != sha256:
            raise FileError(f"the download of {name} is not the file that was published: its sha256 differs; {remedy}")
        write_bytes(cached, content)
    return cached_policy(name)


def _download(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=30) as response:
        return bytes(response.read(MAX_DOWNLOAD))


SHIPPED_FOLDER = Path(__file__).parent / "shipped"
PLAN_FILE = "plan.json"  # in a planner's folder
ORBAX = "_CHECKPOINT_METADATA"  # in the folder of a Brax checkpoint
RLLIB = Path("learner_group/learner/rl_module/default_policy/module_state.pkl")  # in the folder of an RLlib checkpoint


def find_policy(reference: str | Path) -> Path:
    """Return a policy's file from its path, the folder of a run or of an RLlib checkpoint, or its name.

    In a run's folder of rsl_rl it is the newest checkpoint. Shipped policies, policies on the shelf and policies on the
    hub (`hf://USER/NAME`) have names.
    """
    if not isinstance(reference, str | Path):
        kind = type(reference).__name__
        remedy = "take its .folder" if hasattr(reference, "folder") else "save it"  # a run's result has a folder
        raise UsageError(f"a policy is named here by a file, a run's folder or a name, not by a {kind}: {remedy}")
    if is_on_hub(reference):
        return download_policy(reference)
    path = Path(reference)
    check_reachable(path)
    if path.is_dir() and (path / "run.json").exists():
        if (path / "policy.safetensors").exists():
            return path / "policy.safetensors"
        raise FileError(f"{path} has no policy yet: its first segment is not done")
    if path.is_file():
        return path
    if str(reference) in shipped_names():
        return SHIPPED_FOLDER / f"{reference}.safetensors"
    if ":" in str(reference):
        if str(reference) in SHELF:
            return fetch_published(str(reference))
        if str(reference).partition(":")[0] not in SHELVES:
            which = "customize, sweep, evaluate and compare take code"
            raise UsageError(f"{path} is code, and this needs a policy's file; {which}")
        raise FileError(f"there is no file {path}, and none on the shelf of that name{suggest(str(reference), SHELF)}")
    check_no_plan(path)
    if (path / "sweep.json").exists():
        points = [point for point in sorted(path.glob("omega-*")) if point.is_dir()]
        example = f", such as {points[-1]}" if points else ""
        raise FileError(f"{path} is a sweep: name one of its points{example}")
    if (path / RLLIB).is_file():
        return path / RLLIB
    if newest := newest_checkpoint(path):
        return newest
    if (path / ORBAX).is_file():
        remedy = "load it by brax.training.agents.ppo.checkpoint.load, and write that by brax.io.model.save_params"
        raise FileError(f"{path} is a checkpoint that Orbax wrote, which Brax alone can open: {remedy}")
    if path.is_dir():
        files = sorted(file.name for file in path.iterdir() if file.suffix in (".zip", ".pt", ".onnx", ".safetensors"))
        example = f", such as {files[0]}" if files else ""
        raise FileError(f"{path} is a folder without a run; name a policy's file in it{example}")
    known = f"({', '.join(shipped_names())} do){suggest(str(reference), shipped_names())}"
    raise FileError(f"there is no file {path}, and no policy of that name ships with repolicy {known}")


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint of the last iteration in a run's folder of rsl_rl, or None where there is none."""
    checkpoints = [file for file in folder.glob("model_*.pt") if file.stem.removeprefix("model_").isdecimal()]
    return max(checkpoints, key=lambda file: int(file.stem.removeprefix("model_")), default=None)


def is_plan(reference: object) -> bool:
    return isinstance(reference, str | Path) and os.path.isfile(Path(reference, PLAN_FILE))  # False for a name too long


def check_no_plan(reference: object) -> None:
    if is_plan(reference):
        raise FileError(f"{reference} is a planner's folder, which evaluate, compare and render take alone")


def output_folder(path: Path) -> Path:
    """Return the folder for what is made from a policy: that of a file that the user made with Repolicy, else "."."""
    if is_repolicy_file(path) and path.parent != SHIPPED_FOLDER and path not in DOWNLOADED:
        return path.parent
    return Path()


def check_not_overwriting(out: Path, path: Path, suffix: str = "") -> None:
    """Raise UsageError if output at `out` would overwrite the policy at `path` or a run's file, or lacks the suffix."""
    if out.is_file() and path.is_file() and out.samefile(path):
        raise UsageError(f"{out} is the policy itself, which would be lost: choose another --out")
    if suffix and out.suffix.lower() != suffix:
        raise UsageError(f"--out {out} does not end in {suffix}")
    if out.name in ("run.json", "sweep.json", "dial.json"):
        raise UsageError(f"{out} belongs to a run: choose another --out")


def check_reachable(path: Path) -> None:
    """Raise FileError if the path cannot be examined: its name is too long, or a folder is not readable."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read: {getattr(error, 'strerror', error)}") from None


def shipped_names() -> list[str]:
    return sorted(path.stem for path in SHIPPED_FOLDER.glob("*.safetensors"))
