"""Files of an MDFS volume.

`Volume` is the way in; its `open` takes what the built-in ``open`` takes and gives the same kinds of file
objects. Paths are text or bytes, from the root of the volume. What fails raises ``OSError`` or one of its
kinds, as the standard library would, with a message that names the thing, the cause and the next step.

`mdfs.aio` has the same for asyncio, `mdfs.fsspec` for everything that knows fsspec.
"""

from ._io import RawFile
from ._mdfs import Regions
from ._volume import DirectoryEntry, Stat, Volume

__all__ = ["DirectoryEntry", "RawFile", "Regions", "Stat", "Volume"]
