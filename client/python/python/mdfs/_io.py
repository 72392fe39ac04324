"""File objects of the standard library's kinds."""

from __future__ import annotations

import errno
import io
import os
from typing import TYPE_CHECKING, Any

from ._mdfs import Regions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TypeAlias

    from typing_extensions import Buffer

    from . import _mdfs

    #: `Regions`, or pairs (offset, length), also as an array of two columns.
    RegionsLike: TypeAlias = Regions | Iterable[Sequence[int]]

#: Bytes of the buffer of a file object, unless said otherwise: one stripe.
BUFFER_SIZE = 64 << 10


def as_bytes(data: Buffer) -> memoryview:
    """The bytes of whatever has some: bytes, arrays, memory views. They must lie in one piece."""
    view = memoryview(data)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def as_regions(regions: RegionsLike) -> Regions:
    """A list of regions."""
    if isinstance(regions, Regions):
        return regions
    to_list = getattr(regions, "tolist", None)
    return Regions(to_list() if to_list else list(regions))


class RawFile(io.RawIOBase):
    """An open file with a position and without a buffer.

    All of a write is written, or an error is raised and the position stays. Besides the methods of
    ``io.RawIOBase``: ``pread``, ``pwrite``, ``sync``, and for many regions at once ``read_list``,
    ``read_list_into``, ``read_ranges`` and ``write_list``.
    """

    def __init__(self, file: _mdfs.File, name: str, access: str) -> None:
        """Made by ``Volume.open``; `access` has the letters r, w and a."""
        self._file: _mdfs.File | None = file
        self._access = access
        self._position = file.size() if "a" in access else 0
        self.name = name

    @property
    def mode(self) -> str:
        """How it was opened, as of ``io.FileIO``."""
        if "a" in self._access:
            return "ab+" if "r" in self._access else "ab"
        if "w" in self._access:
            return "rb+" if "r" in self._access else "wb"
        return "rb"

    def _open(self, access: str = "") -> _mdfs.File:
        if self._file is None:
            raise ValueError("I/O operation on closed file")
        if access == "r" and "r" not in self._access:
            raise io.UnsupportedOperation("the file was not opened for reading")
        if access == "w" and not {"w", "a"} & set(self._access):
            raise io.UnsupportedOperation("the file was not opened for writing")
        return self._file

    def readable(self) -> bool:
        self._open()
        return "r" in self._access

    def writable(self) -> bool:
        self._open()
        return "w" in self._access or "a" in self._access

    def seekable(self) -> bool:
        self._open()
        return True

    def pread(self, length: int, offset: int) -> bytes:
        """`length` bytes from `offset` on; fewer at the end of the file only."""
        return self._open("r").pread(offset, length)

    def pwrite(self, data: Buffer, offset: int) -> int:
        """Writes all of `data` at `offset`."""
        return self._open("w").pwrite(offset, as_bytes(data))

    def read_list(self, regions: RegionsLike) -> bytes:
        """The bytes of all regions, one region after the other, by as few requests as that takes.

        Regions are a `Regions`, or pairs of offset and length. What lies past the end of the file is left
        out at the end of the answer, and zeros before.
        """
        return self._open("r").read_list(as_regions(regions))

    def read_list_into(self, regions: RegionsLike, buffer: Buffer) -> int:
        """The same into a buffer, as of a numpy array, with room for all of them. Returns how many bytes."""
        return self._open("r").read_list_into(as_regions(regions), as_bytes(buffer))

    def read_ranges(self, ranges: Iterable[Sequence[int]]) -> list[bytes]:
        """The bytes of each range (offset, length), by one list; fewer at the end of the file only."""
        file = self._open("r")
        size = file.size()
        within = [(offset, max(0, min(length, size - offset))) for offset, length in ranges]
        # Others may cut the file meanwhile: then less comes.
        packed = memoryview(file.read_list(as_regions(within)))
        pieces, position = [], 0
        for _, length in within:
            pieces.append(bytes(packed[position : position + length]))
            position += length
        return pieces

    def write_list(self, regions: RegionsLike, data: Buffer) -> int:
        """Writes `data` to the regions, one after the other; it has as many bytes as they have."""
        return self._open("w").write_list(as_regions(regions), as_bytes(data))

    def readinto(self, buffer: Any) -> int:
        count = self._open("r").pread_into(self._position, as_bytes(buffer))
        self._position += count
        return count

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            return self.readall()
        data = self._open("r").pread(self._position, size)
        self._position += len(data)
        return data

    def readall(self) -> bytes:
        file = self._open("r")
        pieces = []
        # Others may lengthen the file meanwhile.
        while (rest := file.size() - self._position) > 0:
            piece = file.pread(self._position, rest)
            if not piece:
                break
            pieces.append(piece)
            self._position += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def write(self, data: Any) -> int:
        file, view = self._open("w"), as_bytes(data)
        if "a" in self._access:
            self._position = file.append(view)
            return len(view)
        count = file.pwrite(self._position, view)
        self._position += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        file = self._open()
        if whence == os.SEEK_CUR:
            offset += self._position
        elif whence == os.SEEK_END:
            offset += file.size()
        elif whence != os.SEEK_SET:
            raise ValueError(f"invalid whence ({whence}, should be 0, 1 or 2)")
        if offset < 0:
            raise OSError(errno.EINVAL, f"the position {offset} is before the start of the file")
        self._position = offset
        return offset

    def tell(self) -> int:
        self._open()
        return self._position

    def truncate(self, size: int | None = None) -> int:
        size = self._position if size is None else size
        self._open("w").truncate(size)
        return size

    def sync(self) -> None:
        """Makes all that was written durable."""
        self._open().sync()

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._file = None

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"mode={self.mode!r}"
        return f"<mdfs.RawFile name={self.name!r} {state}>"


class _Besides:
    """What the buffered kinds have besides their methods in the standard library."""

    def _flushed(self) -> RawFile:
        """The file below, with nothing left in the buffer: neither unwritten nor read before."""
        self.flush()  # type: ignore[attr-defined]
        raw: RawFile = self.raw  # type: ignore[attr-defined]
        return raw

    def sync(self) -> None:
        """Writes the buffer out and makes all that was written durable."""
        self._flushed().sync()

    def read_list(self, regions: RegionsLike) -> bytes:
        """The bytes of all regions, one region after the other; `RawFile.read_list` says more."""
        return self._flushed().read_list(regions)

    def read_list_into(self, regions: RegionsLike, buffer: Buffer) -> int:
        """The same into a buffer. Returns how many bytes."""
        return self._flushed().read_list_into(regions, buffer)

    def read_ranges(self, ranges: Iterable[Sequence[int]]) -> list[bytes]:
        """The bytes of each range (offset, length), by one list; fewer at the end of the file only."""
        return self._flushed().read_ranges(ranges)

    def write_list(self, regions: RegionsLike, data: Buffer) -> int:
        """Writes `data` to the regions, one after the other, past the buffer."""
        return self._flushed().write_list(regions, data)


class BufferedReader(_Besides, io.BufferedReader):
    """``io.BufferedReader`` of a volume."""


class BufferedWriter(_Besides, io.BufferedWriter):
    """``io.BufferedWriter`` of a volume."""


class BufferedRandom(_Besides, io.BufferedRandom):
    """``io.BufferedRandom`` of a volume."""


class TextFile(io.TextIOWrapper):
    """``io.TextIOWrapper`` of a volume."""

    def sync(self) -> None:
        """Writes the buffer out and makes all that was written durable."""
        self.flush()
        self.buffer.sync()  # type: ignore[attr-defined]


def buffered(raw: RawFile, size: int) -> io.BufferedIOBase:
    """`raw` with a buffer of `size` bytes."""
    if raw.readable() and raw.writable():
        return BufferedRandom(raw, size)
    return BufferedWriter(raw, size) if raw.writable() else BufferedReader(raw, size)
