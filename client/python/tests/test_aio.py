"""The asyncio interface."""

import asyncio

import pytest

from mdfs import aio


def test_many_transfers_run_together(served):
    async def work():
        async with aio.Volume(served) as volume:
            await volume.mkdir("/aio")
            async with await volume.open("/aio/f", "wb+") as file:
                pieces = [bytes([number]) * 50_000 for number in range(40)]
                writes = [file.pwrite(piece, at * 50_000) for at, piece in enumerate(pieces)]
                assert await asyncio.gather(*writes) == [50_000] * 40
                await file.sync()
                reads = [file.pread(50_000, at * 50_000) for at in range(40)]
                assert await asyncio.gather(*reads) == pieces
                assert await file.seek(-1, 2) == 40 * 50_000 - 1
                assert await file.read() == pieces[-1][:1]
                assert await file.write(b"x") == 1 and file.tell() == 40 * 50_000 + 1
                assert await file.write_list([(1, 1), (3, 2)], b"abc") == 3
                assert await file.read_list([(1, 1), (3, 2)]) == b"abc"
                assert await file.read_ranges([(4, 1), (1, 1)]) == [b"c", b"a"]
                out = bytearray(4)
                assert await file.read_list_into([(3, 2), (1, 1)], out) == 3 and out == b"bca\0"
                await file.truncate(3)
            assert (await volume.stat("/aio/f")).st_size == 3
            with pytest.raises(FileNotFoundError):
                await volume.open("/aio/none")
            await volume.rmtree("/aio")
            assert not await volume.exists("/aio")

    asyncio.run(work())
