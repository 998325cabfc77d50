"""What `torch.save` and TorchScript write: zips of a pickle and of the bytes of its tensors, and the older kind."""

import io
import struct
import zipfile
from typing import Any

import numpy as np

from repolicy.errors import FileError
from repolicy.readers.pickles import Name, Storages, read_pickle, read_pickles, shortened

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
LEGACY_START = bytes.fromhex("6cfc9c46f9206aa85019")  # the same, as it stands in a file
DTYPES = {
    "DoubleStorage": "f8",
    "FloatStorage": "f4",
    "HalfStorage": "f2",
    "BFloat16Storage": "u2",  # the upper half of a float
    "LongStorage": "i8",
    "IntStorage": "i4",
    "ShortStorage": "i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "b1",
}
BLOAT, SMALL = 200, 2**20  # how many times larger a zip may become, and bytes that any may unpack to


def open_zip(content: bytes, where: str) -> zipfile.ZipFile:
    """A zip that begins where the file does: the end of one that was cut may be that of a zip inside of it."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError) as error:
        raise FileError(f"{where} is no whole zip: {error}") from None
    if not archive.infolist() or min(info.header_offset for info in archive.infolist()):
        raise FileError(f"{where} is no whole zip: its table of contents does not begin where the file does")
    check_unpacked(archive, len(content), where)
    return archive


def check_unpacked(archive: zipfile.ZipFile, size: int, where: str) -> None:
    """Raise where a zip of this size says that its entries unpack to bytes out of all proportion."""
    unpacked = sum(info.file_size for info in archive.infolist())
    if unpacked > BLOAT * size + SMALL:
        raise FileError(f"{where} is refused: its {size:,} bytes would unpack to {unpacked:,}, out of all proportion")


def entry(archive: zipfile.ZipFile, name: str, where: str) -> bytes:
    """An entry's bytes, unless the entry is missing or damaged."""
    if name not in archive.NameToInfo:
        raise FileError(f"{where} is not whole: {name} is missing in it")
    try:
        return archive.read(name)
    except Exception as error:  # zipfile's, zlib's, lzma's and bz2's, of many classes
        raise FileError(f"{where} is damaged: {name} cannot be unpacked ({error})") from None


def load(content: bytes, where: str) -> Any:
    """What `torch.save` wrote, with arrays for tensors and shells for what is neither plain nor a tensor."""
    if content[:4] != b"PK\x03\x04":
        return _load_legacy(content, where)
    archive = open_zip(content, where)
    root = find_root(archive, where)
    return read_pickle(entry(archive, f"{root}data.pkl", where), where, zip_storages(archive, f"{root}data/", where))


def find_root(archive: zipfile.ZipFile, where: str) -> str:
    """The folder in the zip in which PyTorch's `data.pkl` is."""
    roots = [name.removesuffix("data.pkl") for name in archive.namelist() if name.endswith("data.pkl")]
    if not roots:
        raise FileError(f"{where} is a zip, but none that PyTorch wrote: it holds {', '.join(archive.namelist()[:6])}")
    return min(roots, key=len)


def zip_storages(archive: zipfile.ZipFile, folder: str, where: str) -> Storages:
    """What gives the numbers of a storage, by the key that the pickle has for it."""
    root = folder.rpartition("/")[0].rpartition("/")[0]
    big = f"{root}/byteorder" in archive.namelist() and entry(archive, f"{root}/byteorder", where) == b"big"
    known: dict[str, np.ndarray] = {}

    def storage(key: Any) -> np.ndarray:
        _, storage_type, name, _, _ = key
        if _name(name) not in known:
            known[name] = _numbers(entry(archive, f"{folder}{name}", where), storage_type, big)
        return known[name]

    return storage


def _name(key: Any) -> str:
    if not isinstance(key, str):
        raise ValueError("a storage in it has no name")
    return key


def _dtype(storage_type: Any) -> np.dtype:
    if not isinstance(storage_type, Name) or storage_type.last not in DTYPES:
        kind = getattr(storage_type, "last", shortened(storage_type))
        raise ValueError(f"its tensors have numbers of an unknown kind, {kind}")
    return np.dtype(DTYPES[storage_type.last])


def _numbers(content: bytes, storage_type: Any, big: bool = False) -> np.ndarray:
    numbers = np.frombuffer(content, _dtype(storage_type).newbyteorder(">" if big else "<"))
    if storage_type.last == "BFloat16Storage":
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    return numbers.astype(numbers.dtype.newbyteorder("="))


# Before PyTorch 1.6 ---------------------------------------------------------------------------------------------------


def _load_legacy(content: bytes, where: str) -> Any:
    """Five pickles in a row (a magic number, a version, the machine, the object, the storages' keys), then the bytes.

    The bytes come last, so the object is read twice: at first to learn how long its storages are.
    """
    magic, position = read_pickles(content, where)
    if magic != LEGACY_MAGIC:
        raise FileError(f"{where} is no file that PyTorch wrote")
    for _ in range(2):
        position += read_pickles(content[position:], where)[1]
    kinds: dict[str, Any] = {}
    pickled = content[position:]
    try:
        _, length = read_pickles(pickled, where, lambda key: kinds.update({_name(key[2]): key[1]}))
        keys, more = read_pickles(pickled[length:], where)
        storages = _legacy_storages(pickled[length + more :], keys, kinds)
        return read_pickle(pickled, where, lambda key: storages[_name(key[2])])
    except (struct.error, KeyError, TypeError, ValueError) as error:
        raise FileError(f"{where} is damaged: {error}") from None


def _legacy_storages(content: bytes, keys: list[str], kinds: dict[str, Any]) -> dict[str, np.ndarray]:
    storages, position = {}, 0
    for key in keys:
        (count,) = struct.unpack_from("<q", content, position)
        size = count * _dtype(kinds[_name(key)]).itemsize
        if count < 0 or position + 8 + size > len(content):
            raise ValueError("its tensors are cut short")
        storages[key] = _numbers(content[position + 8 : position + 8 + size], kinds[key])
        position += 8 + size
    return storages
