"""Zips that are read without trust: whole ones, which unpack to no more than their size makes likely."""

import io
import zipfile

from repolicy.errors import FileError

BLOAT, SMALL = 200, 2**20  # how many times larger a zip may become, and bytes that any may unpack to


def open_zip(content: bytes, where: str) -> zipfile.ZipFile:
    """Open a zip that begins where the file does: the end of one that was cut may be that of a zip inside of it.

    Its `filename` is what sentences about it call it.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError) as error:
        raise FileError(f"{where} is no whole zip: {error}") from None
    if not archive.infolist() or min(info.header_offset for info in archive.infolist()):
        raise FileError(f"{where} is no whole zip: its table of contents does not begin where the file does")
    archive.filename = where
    check_unpacked_size(archive, len(content))
    return archive


def check_unpacked_size(archive: zipfile.ZipFile, size: int) -> None:
    """Raise where a zip of this size says that its entries unpack to bytes out of all proportion."""
    if (then := unpacked_size(archive)) > BLOAT * size + SMALL:
        raise FileError(f"{archive.filename} is refused: its {size:,} bytes would unpack to {then:,}")


def read_zip_entry(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return an entry's bytes, unless the entry is missing or damaged."""
    if name not in archive.NameToInfo:
        raise FileError(f"{archive.filename} is not whole: {name} is missing in it")
    try:
        return archive.read(name)
    except Exception as error:  # zipfile's, zlib's, lzma's and bz2's, of many classes
        raise FileError(f"{archive.filename} is damaged: {name} cannot be unpacked ({error})") from None


def unpacked_size(archive: zipfile.ZipFile) -> int:
    """Return how many bytes a zip says that its entries have."""
    return sum(info.file_size for info in archive.infolist())
