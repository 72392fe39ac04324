"""Volumes for everything that knows fsspec.

``mdfs://DIRECTORY:/path`` is a volume in a directory of this host, as in
``mdfs:///srv/mdfs/volume:/run1/field.zarr``; ``mdfs://HOST[:PORT][,HOST...]/VOLUME/path`` one behind servers of
other hosts, as in ``mdfs://node1:7400/scratch/run1/field.zarr``. ``mdfs:DIRECTORY:/path`` names a relative
directory with slashes.
"""

from __future__ import annotations

import datetime
import os
import shutil
import stat
from typing import Any

from fsspec.implementations.local import make_path_posix
from fsspec.spec import AbstractFileSystem
from fsspec.utils import stringify_path

from ._io import BUFFER_SIZE
from ._volume import Stat, Volume

#: Bytes that a copy moves at once.
COPY_SIZE = 4 << 20


def _split(url: str) -> tuple[str | None, str]:
    """Volume and path of a URL; a path alone has no volume."""
    servers, slash, rest = url.removeprefix("mdfs://").partition("/")
    if url.startswith("mdfs://") and rest and servers and not servers.endswith(":"):
        volume, found, path = rest.partition(":/")
        if not found or "/" in volume:
            volume, _, path = rest.partition("/")
        return f"mdfs://{servers}/{volume}", "/" + path
    for prefix in ("mdfs://", "mdfs:"):
        if url.startswith(prefix):
            url = url[len(prefix) :]
            break
    volume, found, path = url.partition(":/")
    return (volume, "/" + path) if found and volume else (None, url)


def _is_address(volume: str) -> bool:
    """Is it behind servers of other hosts?"""
    return volume.startswith("mdfs://")


class MdfsFileSystem(AbstractFileSystem):
    """A volume.

    Parameters
    ----------
    volume
        The directory of the volume, or ``mdfs://HOST[:PORT]/VOLUME``. A URL may name it instead.
    auto_mkdir
        Makes missing directories above a file that is made, as stores of objects seem to do: zarr and
        others that come by a URL count on that.
    token, timeout
        As of :class:`mdfs.Volume`.
    """

    protocol = "mdfs"
    root_marker = "/"
    cachable = True

    def __init__(
        self,
        volume: str | None = None,
        auto_mkdir: bool = True,
        token: str | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if volume is None:
            raise ValueError(
                "which volume? Name it by volume= or in the URL: mdfs://DIRECTORY:/path or mdfs://HOST/VOLUME/path"
            )
        volume = os.fspath(volume)
        volume = volume if _is_address(volume) else make_path_posix(volume)
        self.volume = Volume(volume, token=token, timeout=timeout)
        self.auto_mkdir = auto_mkdir

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        _, path = _split(stringify_path(path))
        path = path.rstrip("/")
        if not path.startswith("/"):
            path = "/" + path
        return path if path != "/" else cls.root_marker

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        volume, _ = _split(stringify_path(path))
        return {} if volume is None else {"volume": volume}

    def unstrip_protocol(self, name: str) -> str:
        volume, path = self.volume.directory, self._strip_protocol(name)
        return volume + path if _is_address(volume) else f"mdfs://{volume}:{path}"

    @property
    def fsid(self) -> str:
        return f"mdfs:{self.volume.directory}"

    def _above(self, path: str) -> None:
        if self.auto_mkdir:
            self.volume.makedirs(self._parent(path), exist_ok=True)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        path = self._strip_protocol(path)
        if set("wxa") & set(mode):
            self._above(path)
        return self.volume.open(path, mode, block_size or BUFFER_SIZE)

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        itself = self.volume.stat(path, follow_symlinks=False)
        link = stat.S_ISLNK(itself.st_mode)
        found = itself
        if link:
            try:
                found = self.volume.stat(path)
            except FileNotFoundError:
                pass
        told = self._told(path, found)
        if link:
            told |= {"islink": True, "destination": self.volume.readlink(path)}
        return told

    @staticmethod
    def _told(path: str, found: Stat) -> dict[str, Any]:
        kind = "other"
        if stat.S_ISDIR(found.st_mode):
            kind = "directory"
        elif stat.S_ISREG(found.st_mode):
            kind = "file"
        return {
            "name": path,
            "size": found.st_size,
            "type": kind,
            "created": found.st_birthtime,
            "islink": False,
            "mode": found.st_mode,
            "uid": found.st_uid,
            "gid": found.st_gid,
            "mtime": found.st_mtime,
            "ino": found.st_ino,
            "nlink": found.st_nlink,
        }

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        path = self._strip_protocol(path)
        told = self.info(path)
        if told["type"] != "directory":
            return [told] if detail else [path]
        entries = self.volume.scandir(path)
        if not detail:
            return [entry.path for entry in entries]
        listed = []
        for entry in entries:
            try:
                plain = not entry.is_symlink()
                listed.append(self._told(entry.path, entry.stat()) if plain else self.info(entry.path))
            except FileNotFoundError:
                pass  # removed meanwhile
        return listed

    def exists(self, path: str, **options: Any) -> bool:
        return self.volume.exists(self._strip_protocol(path))

    def lexists(self, path: str, **options: Any) -> bool:
        try:
            self.volume.stat(self._strip_protocol(path), follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def isfile(self, path: str) -> bool:
        return self.volume.isfile(self._strip_protocol(path))

    def isdir(self, path: str) -> bool:
        return self.volume.isdir(self._strip_protocol(path))

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        path = self._strip_protocol(path)
        if create_parents:
            self.volume.makedirs(path)
        else:
            self.volume.mkdir(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self.volume.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        self.volume.rmdir(self._strip_protocol(path))

    def rm_file(self, path: str) -> None:
        self.volume.remove(self._strip_protocol(path))

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        if maxdepth is not None:
            super().rm(path, recursive=recursive, maxdepth=maxdepth)
            return
        for one in path if isinstance(path, list) else [path]:
            one = self._strip_protocol(one)
            found = self.volume.stat(one, follow_symlinks=False)
            if not stat.S_ISDIR(found.st_mode):
                self.volume.remove(one)
            elif recursive:
                self.volume.rmtree(one)
            else:
                raise ValueError("Cannot delete directory, set recursive=True")

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        self._above(path2)
        if self.volume.isdir(path1):
            self.volume.makedirs(path2, exist_ok=True)
            return
        with self.volume.open(path1, "rb", 0) as source, self.volume.open(path2, "wb", 0) as copy:
            shutil.copyfileobj(source, copy, COPY_SIZE)

    def mv(self, path1: str, path2: str, recursive: bool = True, **options: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.volume.isdir(path2):
            path2 = f"{path2}/{path1.rsplit('/', 1)[1]}"
        self._above(path2)
        self.volume.rename(path1, path2)

    def touch(self, path: str, truncate: bool = True, **options: Any) -> None:
        path = self._strip_protocol(path)
        self._above(path)
        with self.volume.open(path, "ab", 0) as file:
            if truncate:
                file.truncate(0)
        self.volume.utime(path)

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: Any
    ) -> bytes:
        with self.volume.open(self._strip_protocol(path), "rb", 0) as file:
            if start is None and end is None:
                return file.read()
            first, last = self._within(file.seek(0, os.SEEK_END), start, end)
            return file.pread(max(0, last - first), first)

    def cat_ranges(
        self,
        paths: list[str],
        starts: int | None | list[int | None],
        ends: int | None | list[int | None],
        max_gap: int | None = None,
        on_error: str = "return",
        **options: Any,
    ) -> list[Any]:
        """The bytes from each start to each end; those of one file by one list. Gaps are the file system's
        business: `max_gap` changes nothing."""
        if not isinstance(paths, list):
            raise TypeError("paths must be a list")
        starts = starts if isinstance(starts, list) else [starts] * len(paths)
        ends = ends if isinstance(ends, list) else [ends] * len(paths)
        if len(starts) != len(paths) or len(ends) != len(paths):
            raise ValueError("there must be as many starts and ends as paths")
        by_path: dict[str, list[int]] = {}
        for place, path in enumerate(paths):
            by_path.setdefault(self._strip_protocol(path), []).append(place)
        told: list[Any] = [None] * len(paths)
        for path, places in by_path.items():
            try:
                pieces = self._ranges(path, [(starts[place], ends[place]) for place in places])
            except Exception as error:
                if on_error != "return":
                    raise
                pieces = [error] * len(places)
            for place, piece in zip(places, pieces):
                told[place] = piece
        return told

    def _ranges(self, path: str, bounds: list[tuple[int | None, int | None]]) -> list[Any]:
        with self.volume.open(path, "rb", 0) as file:
            size = file.seek(0, os.SEEK_END)
            ranges = []
            for start, end in bounds:
                first, last = self._within(size, start, end)
                ranges.append((first, max(0, last - first)))
            return file.read_ranges(ranges)

    @staticmethod
    def _within(size: int, start: int | None, end: int | None) -> tuple[int, int]:
        """Bounds as of a slice, within a file of `size` bytes."""
        first, last = (
            max(0, size + bound) if bound < 0 else min(bound, size)
            for bound in (start or 0, size if end is None else end)
        )
        return first, last

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        path = self._strip_protocol(path)
        self._above(path)
        with self.volume.open(path, "xb" if mode == "create" else "wb", 0) as file:
            file.write(value)

    def created(self, path: str) -> datetime.datetime:
        return self._time(self.info(path)["created"])

    def modified(self, path: str) -> datetime.datetime:
        return self._time(self.info(path)["mtime"])

    @staticmethod
    def _time(seconds: float) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(seconds, tz=datetime.timezone.utc)

    def link(self, source: str, destination: str, **options: Any) -> None:
        """A further name for a file."""
        self.volume.link(self._strip_protocol(source), self._strip_protocol(destination))

    def symlink(self, target: str, path: str, **options: Any) -> None:
        """A symbolic link to an absolute path of the volume."""
        self.volume.symlink(self._strip_protocol(target), self._strip_protocol(path))

    def chmod(self, path: str, mode: int) -> None:
        """Sets the permission bits."""
        self.volume.chmod(self._strip_protocol(path), mode)
