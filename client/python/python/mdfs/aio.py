"""The same for asyncio: each call runs in a thread of the event loop's pool.

The file system answers many requests at once, so ``asyncio.gather`` of reads and writes runs them together.

    async with mdfs.aio.Volume("/srv/mdfs/volume") as volume:
        async with await volume.open("/run1/rank0", "rb") as file:
            pieces = await asyncio.gather(*(file.pread(length, offset) for offset in offsets))
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from . import _volume
from ._io import RawFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from typing_extensions import Buffer

    from ._io import RegionsLike


class File:
    """An open file with a position. Operations at offsets may run together; others one by one."""

    def __init__(self, raw: RawFile) -> None:
        """Made by `Volume.open`."""
        self._raw = raw
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> File:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def pread(self, length: int, offset: int) -> bytes:
        """`length` bytes from `offset` on; fewer at the end of the file only."""
        return await asyncio.to_thread(self._raw.pread, length, offset)

    async def pwrite(self, data: Buffer, offset: int) -> int:
        """Writes all of `data` at `offset`."""
        return await asyncio.to_thread(self._raw.pwrite, data, offset)

    async def read_list(self, regions: RegionsLike) -> bytes:
        """The bytes of all regions; `mdfs.RawFile.read_list` says more."""
        return await asyncio.to_thread(self._raw.read_list, regions)

    async def read_list_into(self, regions: RegionsLike, buffer: Buffer) -> int:
        """The same into a buffer, with room for all of them. Returns how many bytes."""
        return await asyncio.to_thread(self._raw.read_list_into, regions, buffer)

    async def read_ranges(self, ranges: Iterable[Sequence[int]]) -> list[bytes]:
        """The bytes of each range (offset, length), by one list; fewer at the end of the file only."""
        return await asyncio.to_thread(self._raw.read_ranges, ranges)

    async def write_list(self, regions: RegionsLike, data: Buffer) -> int:
        """Writes `data` to the regions, one after the other."""
        return await asyncio.to_thread(self._raw.write_list, regions, data)

    async def read(self, size: int = -1) -> bytes:
        """`size` bytes from the position on, or all that follow."""
        async with self._turn:
            return await asyncio.to_thread(self._raw.read, size)

    async def write(self, data: Buffer) -> int:
        """Writes all of `data` at the position."""
        async with self._turn:
            return await asyncio.to_thread(self._raw.write, data)

    async def seek(self, offset: int, whence: int = 0) -> int:
        """Moves the position."""
        async with self._turn:
            return await asyncio.to_thread(self._raw.seek, offset, whence)

    def tell(self) -> int:
        """The position."""
        return self._raw.tell()

    async def truncate(self, size: int | None = None) -> int:
        """Cuts the file, at the position if no size is given."""
        async with self._turn:
            return await asyncio.to_thread(self._raw.truncate, size)

    async def sync(self) -> None:
        """Makes all that was written durable."""
        await asyncio.to_thread(self._raw.sync)

    async def close(self) -> None:
        """Closes the file."""
        await asyncio.to_thread(self._raw.close)


class Volume:
    """A volume; `mdfs.Volume` says what its methods do. All but `open` have the same arguments."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._volume: _volume.Volume | None = None

    async def __aenter__(self) -> Volume:
        self._volume = await asyncio.to_thread(_volume.Volume, self._directory)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self, path: _volume.Path, mode: str = "rb") -> File:
        """Opens a file in one of the binary modes of the built-in ``open``, without a buffer."""
        if "b" not in mode:
            raise ValueError(f"invalid mode: {mode!r}: only binary modes")
        raw = await asyncio.to_thread(self._opened.open, path, mode, 0)
        assert isinstance(raw, RawFile)
        return File(raw)

    @property
    def _opened(self) -> _volume.Volume:
        if self._volume is None:
            raise ValueError("the volume is not open; use it in `async with`")
        return self._volume

    async def close(self) -> None:
        """Ends the use of the volume."""
        if self._volume is not None:
            await asyncio.to_thread(self._volume.close)


def _method(name: str) -> Any:
    async def method(self: Volume, *arguments: Any, **named: Any) -> Any:
        return await asyncio.to_thread(getattr(self._opened, name), *arguments, **named)

    method.__name__ = name
    method.__doc__ = getattr(_volume.Volume, name).__doc__
    return method


for _name in (
    "chmod chown exists getxattr isdir isfile link listdir listxattr makedirs mkdir readlink remove removexattr "
    "rename replace rmdir rmtree scandir setxattr space stat symlink sync truncate unlink utime"
).split():
    setattr(Volume, _name, _method(_name))
