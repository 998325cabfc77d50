"""Where a policy is: a file, a run's folder, a name that ships, a name on the shelf, or a place on the hub."""

from pathlib import Path

from repolicy.errors import FileError, UsageError
from repolicy.loading import nearest
from repolicy.policies.storage import is_own
from repolicy.priors.hub import DOWNLOADED, downloaded, is_on_hub

PRIORS = Path(__file__).parent / "shipped"


def find_policy(reference: str | Path) -> Path:
    """A file as it is; of a run's folder, the policy that it hands out; of a name, the prior that ships under it; of
    `hf://USER/NAME`, the policy on the hub."""
    if is_on_hub(reference):
        return downloaded(reference)
    path = Path(reference)
    check_reachable(path)
    if path.is_dir() and (path / "run.json").exists():
        if (path / "policy.safetensors").exists():
            return path / "policy.safetensors"
        raise FileError(f"{path} has no policy yet: its first segment is not done")
    if path.is_file():
        return path
    if str(reference) in shipped():
        return PRIORS / f"{reference}.safetensors"
    if ":" in str(reference):
        from repolicy.priors.shelf import SHELF, fetched

        if str(reference) in SHELF:
            return fetched(str(reference))
        if str(reference).partition(":")[0] not in {name.partition(":")[0] for name in SHELF}:
            raise UsageError(
                f"{path} stands for code, and this needs a policy's file; customize and evaluate take code"
            )
        raise FileError(f"there is no file {path}, and none on the shelf of that name{nearest(str(reference), SHELF)}")
    if path.is_dir():
        raise FileError(f"{path} is a folder without a run; name a policy's file in it")
    raise FileError(
        f"there is no file {path}, and no policy of that name ships with repolicy "
        f"({', '.join(shipped())} do){nearest(str(reference), shipped())}"
    )


def beside(path: Path) -> Path:
    """The folder for what is made of a policy: its own; this one, where that is the package's, a cache's or others'."""
    return path.parent if is_own(path) and path.parent != PRIORS and path not in DOWNLOADED else Path()


def check_writes_over_none(out: Path, path: Path, suffix: str = "") -> None:
    """Raise where what is made of the policy at `path` would be written over it or over a run's own files.

    With a suffix the name must end in it: what ends in another is a file of another kind.
    """
    if out.is_file() and path.is_file() and out.samefile(path):
        raise UsageError(f"{out} is the policy itself, which would be lost: choose another --out")
    if suffix and out.suffix.lower() != suffix:
        raise UsageError(f"--out {out} does not end in {suffix}")
    if out.name in ("run.json", "sweep.json", "dial.json"):
        raise UsageError(f"{out} belongs to a run: choose another --out")


def check_reachable(path: Path) -> None:
    """Raise where it cannot be said what is there: the name is too long, or a folder may not be read."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read: {getattr(error, 'strerror', error)}") from None


def shipped() -> list[str]:
    """The names of the priors that ship."""
    return sorted(path.stem for path in PRIORS.glob("*.safetensors"))
