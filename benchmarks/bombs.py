"""What grows without end when it is read, and a hub whose answers make no sense."""

import random
import zipfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.pretended_hub import Hub

ZEROS = 3 * 10**8  # bytes


def laid() -> Iterator[tuple[Path, list[list[str]]]]:
    """Each file, written into this folder, and the commands that read it."""
    demonstrations = Path("demonstrations.npz")
    fits = ["evaluate", "theirs.onnx", "--env", "Hopper-v4", "--std", "fit", "--demonstrations", str(demonstrations)]
    for head in (b"", claiming((10**9, 11)), claiming((10**15, 11))):
        with zipfile.ZipFile(demonstrations, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            zeros(archive, "observations.npy", head or claiming((ZEROS // 88, 11)), 0 if head else ZEROS)
            archive.writestr("actions.npy", claiming((120, 3)) + bytes(120 * 24))
        yield demonstrations, [["imitate", str(demonstrations), "--hidden", "4"], fits]
    with zipfile.ZipFile("policy.pt", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("policy/data.pkl", b"\x80\x02}q\x00.")
        zeros(archive, "policy/data/0", b"", ZEROS)
    yield Path("policy.pt"), [["inspect", "policy.pt"], ["evaluate", "policy.pt"]]
    for length in (10**8, 10**15, 2**64 - 1):
        Path("policy.safetensors").write_bytes(length.to_bytes(8, "little") + b"{" * 1000)
        yield Path("policy.safetensors"), [["inspect", "policy.safetensors"]]


def zeros(archive: zipfile.ZipFile, name: str, head: bytes, count: int) -> None:
    """An entry that is nothing but zeros behind its head, never whole in memory."""
    with archive.open(name, "w") as entry:
        entry.write(head)
        for _ in range(count // 10**6):
            entry.write(bytes(10**6))


def claiming(shape: tuple[int, int]) -> bytes:
    """How an array of this shape begins in NumPy's files."""
    told = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(told).to_bytes(2, "little") + told.encode()


ODD = [
    "",
    "..",
    "../../x",
    "/x",
    "a/b",
    "x" * 5000,
    "-1",
    "0",
    "1000000000000000",
    "9" * 400,
    "nan",
    "\t",
    '"',
    "%2e%2e/x",
]
NAMES = ["X-Repo-Commit", "ETag", "X-Linked-ETag", "X-Linked-Size", "Content-Length", "Location", "Content-Encoding"]


def odd_answer(random_: random.Random, whole: bytes) -> list[str]:
    """What the hub answers from here on. Returns the command that asks."""
    content = random_.choice([whole, whole[: random_.randrange(len(whole))], b"", random_.randbytes(1000)])
    Hub.files["a/b"] = {"policy.safetensors": content}
    Hub.status = random_.choice([200, 200, 200, 200, 206, 302, 304, 307, 416, 429, 500])
    Hub.headers_of_files = {name: random_.choice(ODD) for name in random_.sample(NAMES, random_.choice([1, 1, 2, 3]))}
    return [random_.choice(["inspect", "evaluate", "render"]), random_.choice(["hf://a/b", "hf://a/b@main"])]
