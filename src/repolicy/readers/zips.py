"""Read zips that nobody vouches for: refuse damaged ones, and those that would unpack to far too many bytes."""

import io
import zipfile

from repolicy.errors import FileError

MAX_RATIO, FREE_SIZE = 200, 2**20  # a zip may unpack to this many times its size, plus this many bytes


def open_zip(content: bytes, where: str) -> zipfile.ZipFile:
    """Open a zip; `where` is its name in messages.

    The zip must begin at the first byte: the end of a truncated file may look like another zip that was inside of it.
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
    """Raise a FileError if a zip of `size` bytes says that it unpacks to far too many bytes."""
    unpacked = unpacked_size(archive)
    if unpacked > MAX_RATIO * size + FREE_SIZE:
        raise FileError(f"{archive.filename} is refused: its {size:,} bytes would unpack to {unpacked:,}")


def read_zip_entry(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return an entry's bytes; raise a FileError if the entry is missing or damaged."""
    try:
        return archive.read(name)
    except Exception as error:  # a KeyError, zipfile's, zlib's, lzma's and bz2's, of many classes
        raise FileError(f"{archive.filename} is damaged: {name} cannot be unpacked ({error})") from None


def unpacked_size(archive: zipfile.ZipFile) -> int:
    """Return the total size of a zip's entries, as its table of contents has it."""
    return sum(info.file_size for info in archive.infolist())
