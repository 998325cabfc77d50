"""Policies on the Hugging Face Hub, named `hf://USER/NAME` or `hf://USER/NAME@REVISION`.

Of a repository one file is downloaded, `policy.safetensors`, and read like any other's: nothing in it is run.
"""

import contextlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from repolicy.errors import FileError, RepolicyError, UsageError, described
from repolicy.policies.storage import read

FILE = "policy.safetensors"
DOWNLOADED: set[Path] = set()  # by this process: files in a cache, which is no place for results


class Repository(NamedTuple):
    """A repository of the hub, and perhaps a revision of it."""

    repository: str
    revision: str | None

    def __str__(self) -> str:
        return f"hf://{self.repository}" + (f"@{self.revision}" if self.revision else "")


def is_on_hub(reference: str | Path) -> bool:
    return str(reference).startswith("hf:/")


def repository_of(reference: str | Path) -> Repository:
    """Return what a name stands for; a path has lost one of the two slashes."""
    name = re.sub("^hf:/+", "hf://", str(reference))
    match = re.fullmatch(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", name)
    if match is None:
        raise UsageError(f"{name!r} is no name on the hub; write hf://USER/NAME or hf://USER/NAME@REVISION")
    return Repository(match[1], match[2])


def download_policy(reference: str | Path) -> Path:
    """Return the policy's file of a repository, in the hub's own cache on this machine; a damaged one is not kept."""
    at = repository_of(reference)
    hub = import_hub()
    with translate_hub_errors(at):
        path = Path(hub.hf_hub_download(at.repository, FILE, revision=at.revision, endpoint=hub.constants.ENDPOINT))
    kept = path.resolve()  # the path is a link, by a name that the hub chose
    if not (kept.is_file() and kept.is_relative_to(Path(hub.constants.HF_HUB_CACHE).resolve())):
        path.unlink(missing_ok=True)
        raise FileError(f"{at}: the hub's answer cannot be used: it leads out of the cache")
    try:
        read(path, "policy")
    except FileError as error:
        for each in (kept, path):
            each.unlink(missing_ok=True)
        raise FileError(f"{at}: what came is no policy, and is removed from the cache: {error}") from None
    DOWNLOADED.add(path)
    return path


def import_hub() -> Any:
    try:
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.utils.logging  # sets the level of its log, so before `in_sentences` does
    except ImportError:
        raise UsageError("hf:// needs the package huggingface_hub: pip install 'repolicy[hub]'") from None
    return huggingface_hub


@contextlib.contextmanager
def translate_hub_errors(at: Repository) -> Iterator[None]:
    """Turn what a login, a name or a network can do wrong in calls of the hub's library into a sentence each."""
    errors, log = import_hub().errors, logging.getLogger("huggingface_hub")
    level = log.level
    log.setLevel(logging.CRITICAL)  # it tells of each retry
    try:
        yield
    except errors.RevisionNotFoundError:
        raise FileError(f"hf://{at.repository} has no revision {at.revision}") from None
    except errors.RemoteEntryNotFoundError:
        raise FileError(f"{at} holds no {FILE}: it is no policy that repolicy push wrote") from None
    except errors.GatedRepoError:
        raise FileError(f"{at} asks you to accept its terms first, on its page, and to log in: hf auth login") from None
    except errors.LocalTokenNotFoundError:
        raise FileError(f"{at} needs a login: hf auth login") from None
    except errors.HFValidationError:
        raise UsageError(f"{at} is no name on the hub; write hf://USER/NAME or hf://USER/NAME@REVISION") from None
    except RepolicyError:
        raise
    except Exception as error:  # its client has classes of its own, for timeouts and broken connections
        cause: BaseException | None = error  # of what it says of its cache, the reason is behind it
        while cause is not None and not isinstance(cause, errors.HfHubHTTPError):
            cause = cause.__cause__
        if cause is not None:
            status = cause.response.status_code
            if status in (401, 403, 404):
                raise FileError(f"{at} is not there, or not for you: if it is private, log in: hf auth login") from None
            raise FileError(f"{at}: the hub answered with status {status}; try again later") from None
        if isinstance(error, OSError | errors.LocalEntryNotFoundError) or "http" in type(error).__module__:
            raise FileError(f"{at} cannot be reached: no network, or no hub ({type(error).__name__})") from None
        raise FileError(f"{at}: the hub's answer cannot be used: {described(error)}") from error
    finally:
        log.setLevel(level)
