"""Volumes, with the words of the standard library's ``os``."""

from __future__ import annotations

import os
import stat
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, TypeAlias

from . import _mdfs
from ._io import BUFFER_SIZE, RawFile, TextFile, buffered

#: A path in a volume.
Path: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_ACCESS = {"r": ("r", "r"), "w": ("w", "wct"), "x": ("w", "wx"), "a": ("a", "wc")}


@dataclass(frozen=True)
class Stat:
    """What is known of a file, with the names of ``os.stat_result``; times also in nanoseconds."""

    st_mode: int
    st_ino: int
    st_nlink: int
    st_uid: int
    st_gid: int
    st_size: int
    st_used_bytes: int
    st_atime_ns: int
    st_mtime_ns: int
    st_ctime_ns: int
    st_birthtime_ns: int

    @property
    def st_atime(self) -> float:
        """Last read, in seconds since 1970."""
        return self.st_atime_ns / 1e9

    @property
    def st_mtime(self) -> float:
        """Last change of the content, in seconds since 1970."""
        return self.st_mtime_ns / 1e9

    @property
    def st_ctime(self) -> float:
        """Last change of content or attributes, in seconds since 1970."""
        return self.st_ctime_ns / 1e9

    @property
    def st_birthtime(self) -> float:
        """Creation, in seconds since 1970."""
        return self.st_birthtime_ns / 1e9

    @property
    def st_blocks(self) -> int:
        """Disk space in use, in units of 512 bytes."""
        return -(-self.st_used_bytes // 512)


@dataclass(frozen=True)
class DirectoryEntry:
    """One name in a directory, as of ``os.scandir``."""

    name: str
    path: str
    kind: int
    ino: int
    _stat: Stat | None

    def inode(self) -> int:
        """Its inode number."""
        return self.ino

    def is_dir(self) -> bool:
        """Is it a directory? A link to one is none."""
        return stat.S_ISDIR(self.kind)

    def is_file(self) -> bool:
        """Is it a regular file? A link to one is none."""
        return stat.S_ISREG(self.kind)

    def is_symlink(self) -> bool:
        """Is it a symbolic link?"""
        return stat.S_ISLNK(self.kind)

    def stat(self) -> Stat:
        """What was known of it when the directory was listed; of a link itself."""
        if self._stat is None:
            raise FileNotFoundError(2, "it was removed while the directory was listed", self.path)
        return self._stat


class Volume:
    """The volume in a directory of this computer, or at ``mdfs://HOST[:PORT]/VOLUME``.

    It is used through the servers that serve it. (A package built with the feature ``embedded`` opens a
    directory that is not served in this process, which then has it alone.) May be used by many threads at
    once, and as a context manager, which closes it. A forked child connects again by itself, and opens files
    of its parent again by their names.

    `token` is a file with a user token, else that of the environment variable MDFS_TOKEN or of the folder
    ~/.config/mdfs; a request waits `timeout` seconds for a server that is away (default 120).
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        token: str | os.PathLike[str] | None = None,
        timeout: float | None = None,
    ) -> None:
        self.directory = os.fspath(directory)
        self._volume: _mdfs.Volume | None = _mdfs.Volume(self.directory, token, timeout)
        self._closing = threading.Lock()

    def __enter__(self) -> Volume:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<mdfs.Volume {self.directory!r}>"

    @property
    def _native(self) -> _mdfs.Volume:
        if self._volume is None:
            raise ValueError("the volume is closed")
        return self._volume

    def close(self) -> None:
        """Ends the use of the volume. If it is open in this process, all data are made durable."""
        with self._closing:
            volume, self._volume = self._volume, None
        if volume is not None:
            volume.finish()

    def sync(self) -> None:
        """Makes everything durable that was done in the volume, by whomever."""
        self._native.sync()

    @property
    def outage(self) -> tuple[int | None, float] | None:
        """What requests of other threads wait for, if a server has been away for 2 seconds or more: the
        number of its process (None if it is not known) and for how many seconds. Else None."""
        return self._native.outage()

    def open(
        self,
        path: Path,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        permissions: int = 0o666,
    ) -> IO[Any]:
        """Opens a file, as the built-in ``open`` does.

        The file objects have a further method, ``sync``, which makes what was written durable.
        `permissions` are those of a new file, less the umask's.
        """
        letters = set(mode)
        ways = letters & set(_ACCESS)
        if len(letters) != len(mode) or len(ways) != 1 or letters - set("rwxabt+"):
            raise ValueError(f"invalid mode: {mode!r}")
        text = "b" not in letters
        if text and buffering == 0:
            raise ValueError("can't have unbuffered text I/O")
        if not text and ("t" in letters or (encoding, errors, newline) != (None, None, None)):
            raise ValueError("binary mode takes no encoding, errors or newline, and no 't'")
        access, how = _ACCESS[ways.pop()]
        if "+" in letters:
            access, how = access + "rw", how + "rw"
        file = self._native.open(os.fsencode(path), how, permissions)
        raw = RawFile(file, os.fsdecode(path), access)
        if buffering == 0:
            return raw  # type: ignore[return-value]
        with_buffer = buffered(raw, BUFFER_SIZE if buffering in (-1, 1) else buffering)
        if not text:
            return with_buffer  # type: ignore[return-value]
        return TextFile(with_buffer, encoding, errors, newline, line_buffering=buffering == 1)

    def stat(self, path: Path, *, follow_symlinks: bool = True) -> Stat:
        """What is known of a file."""
        return Stat(*self._native.stat(os.fsencode(path), follow_symlinks))

    def exists(self, path: Path) -> bool:
        """Is there something, at the end of all links?"""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def isdir(self, path: Path) -> bool:
        """Is it a directory, at the end of all links?"""
        return self._is(path, stat.S_ISDIR)

    def isfile(self, path: Path) -> bool:
        """Is it a regular file, at the end of all links?"""
        return self._is(path, stat.S_ISREG)

    def _is(self, path: Path, kind: Any) -> bool:
        try:
            return bool(kind(self.stat(path).st_mode))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def scandir(self, path: Path = "/") -> list[DirectoryEntry]:
        """The entries of a directory, in no particular order, with what ``stat`` tells of each."""
        above = os.fsdecode(path).rstrip("/")
        entries = self._native.scan(os.fsencode(path))
        return [
            DirectoryEntry(
                os.fsdecode(name),
                f"{above}/{os.fsdecode(name)}",
                kind,
                ino,
                None if found is None else Stat(*found),
            )
            for name, kind, ino, found in entries
        ]

    def listdir(self, path: Path = "/") -> list[str]:
        """The names in a directory, in no particular order."""
        return [os.fsdecode(name) for name, *_ in self._native.scan(os.fsencode(path))]

    def mkdir(self, path: Path, mode: int = 0o777) -> None:
        """Makes a directory."""
        self._native.mkdir(os.fsencode(path), mode)

    def makedirs(self, path: Path, exist_ok: bool = False) -> None:
        """Makes a directory and those above it that are missing."""
        if not exist_ok and self.exists(path):
            raise FileExistsError(17, "the directory exists already", os.fsdecode(path))
        self._native.mkdir_all(os.fsencode(path))

    def rmdir(self, path: Path) -> None:
        """Removes an empty directory."""
        self._native.rmdir(os.fsencode(path))

    def remove(self, path: Path) -> None:
        """Removes a name of a file, or a symbolic link. An open file lives on without a name."""
        self._native.unlink(os.fsencode(path))

    unlink = remove

    def rmtree(self, path: Path) -> None:
        """Removes a directory with all that is in it."""
        self._native.remove_all(os.fsencode(path))

    def rename(self, source: Path, destination: Path) -> None:
        """Gives a file or a directory another name, replacing what has it: whole or not at all."""
        self._native.rename(os.fsencode(source), os.fsencode(destination))

    replace = rename

    def link(self, source: Path, destination: Path) -> None:
        """Gives a file a further name."""
        self._native.link(os.fsencode(source), os.fsencode(destination))

    def symlink(self, target: Path, path: Path) -> None:
        """Makes a symbolic link `path` that points to `target`."""
        self._native.symlink(os.fsencode(target), os.fsencode(path))

    def readlink(self, path: Path) -> str:
        """Where a symbolic link points."""
        return os.fsdecode(self._native.readlink(os.fsencode(path)))

    def chmod(self, path: Path, mode: int) -> None:
        """Sets the permission bits."""
        self._native.change(os.fsencode(path), mode & 0o7777, None, None, None)

    def chown(self, path: Path, uid: int, gid: int) -> None:
        """Sets owner and group; -1 leaves them."""
        owner, group = (None if number == -1 else number for number in (uid, gid))
        self._native.change(os.fsencode(path), None, owner, group, None)

    def truncate(self, path: Path, length: int) -> None:
        """Cuts a file, or lengthens it by a hole."""
        self._native.change(os.fsencode(path), None, None, None, length)

    def utime(self, path: Path, ns: tuple[int, int] | None = None) -> None:
        """Sets the times of the last read and change, in nanoseconds; to now, if none are given."""
        self._native.utime(os.fsencode(path), *(ns or (None, None)))

    def space(self) -> tuple[int, int]:
        """Bytes of the volume, and how many of them are free."""
        total, free, _ = self._native.space()
        return total, free

    def getxattr(self, path: Path, name: str) -> bytes:
        """The value of an extended attribute."""
        return self._native.getxattr(os.fsencode(path), os.fsencode(name))

    def setxattr(self, path: Path, name: str, value: bytes) -> None:
        """Sets an extended attribute."""
        self._native.setxattr(os.fsencode(path), os.fsencode(name), value)

    def listxattr(self, path: Path) -> list[str]:
        """The names of the extended attributes."""
        return [os.fsdecode(name) for name in self._native.listxattr(os.fsencode(path))]

    def removexattr(self, path: Path, name: str) -> None:
        """Removes an extended attribute."""
        self._native.removexattr(os.fsencode(path), os.fsencode(name))
