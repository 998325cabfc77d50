"""Policies on the Hugging Face Hub, named `hf://USER/NAME` or `hf://USER/NAME@REVISION`.

Only the file `policy.safetensors` of a repository is downloaded. It is untrusted, and nothing in it is executed.
"""

import contextlib
import errno
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from repolicy.errors import FileError, UsageError, describe_error
from repolicy.text import printable

FILE = "policy.safetensors"
DOWNLOADED: set[Path] = set()  # files that this process downloaded; their folder is a cache, not a place for results


class Repository(NamedTuple):
    """A repository of the hub, and optionally a revision of it."""

    name: str  # USER/NAME
    revision: str | None

    def __str__(self) -> str:
        return f"hf://{self.name}" + (f"@{self.revision}" if self.revision else "")


def is_on_hub(reference: str | Path) -> bool:
    return str(reference).startswith("hf:/")


def repository_of(reference: str | Path) -> Repository:
    """Parse a name on the hub. A `Path` has lost one of the two slashes."""
    name = re.sub("^hf:/+", "hf://", str(reference))
    match = re.fullmatch(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", name)
    if match is None:
        raise UsageError(f"{name!r} is no name on the hub; write hf://USER/NAME or hf://USER/NAME@REVISION")
    return Repository(match[1], match[2])


def download_policy(reference: str | Path) -> Path:
    """Download a repository's policy into the hub's cache and return its file."""
    repo, hub = repository_of(reference), import_hub()
    with translate_hub_errors(repo):
        path = Path(hub.hf_hub_download(repo.name, FILE, revision=repo.revision, endpoint=hub.constants.ENDPOINT))
    DOWNLOADED.add(path)
    return path


def import_hub() -> Any:
    try:
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.utils.logging  # sets its log level, so `translate_hub_errors` must come later
    except ImportError:
        raise UsageError("hf:// needs the package huggingface_hub: pip install 'repolicy[hub]'") from None
    return huggingface_hub


@contextlib.contextmanager
def translate_hub_errors(repo: Repository) -> Iterator[None]:
    """Turn errors of the hub's library into one-sentence errors about the login, the name or the network."""
    hub, log = import_hub(), logging.getLogger("huggingface_hub")
    errors = hub.errors
    level = log.level
    log.setLevel(logging.CRITICAL)  # it logs every retry
    try:
        yield
    except errors.RemoteEntryNotFoundError:
        raise FileError(f"{repo} holds no {FILE}: it is no policy that repolicy push wrote") from None
    except errors.LocalTokenNotFoundError:
        raise FileError(f"{repo} needs a login: hf auth login") from None
    except Exception as error:  # the HTTP client has its own classes for timeouts and broken connections
        cause: BaseException | None = error  # an error about the cache may have been caused by an HTTP error
        while cause is not None and not isinstance(cause, errors.HfHubHTTPError):
            cause = cause.__cause__
        if cause is not None:
            status = cause.response.status_code
            if status in (401, 403, 404):
                remedy = "if it is private, log in: hf auth login"
                raise FileError(f"{repo} is not there, or not for you: {remedy}") from None
            reason = f": {printable(cause.server_message)}" if cause.server_message else "; try again later"
            raise FileError(f"{repo}: the hub answered with status {status}{reason}") from None
        if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT):
            place = f"{error.filename or hub.constants.HF_HUB_CACHE}: {error.strerror}"
            raise FileError(f"{repo} cannot be kept: {place}; HF_HOME names another folder") from None
        if isinstance(error, OSError | errors.LocalEntryNotFoundError) or "http" in type(error).__module__:
            raise FileError(f"{repo} cannot be reached: no network, or no hub ({type(error).__name__})") from None
        raise FileError(f"{repo}: the hub's answer cannot be used: {describe_error(error)}") from error
    finally:
        log.setLevel(level)
