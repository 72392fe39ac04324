"""Volumes and file objects behave as the standard library's."""

import errno
import io
import multiprocessing
import os
import random
import signal
import stat
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest

import mdfs

MDFS = os.environ.get("MDFS", "mdfs")


def test_names_have_the_words_of_os(volume, home):
    volume.mkdir(f"{home}/d")
    with pytest.raises(FileExistsError):
        volume.mkdir(f"{home}/d")
    with volume.open(f"{home}/d/a", "w") as file:
        file.write("häuser\n")
    assert volume.stat(f"{home}/d/a").st_size == 8
    volume.link(f"{home}/d/a", f"{home}/d/b")
    volume.symlink("b", f"{home}/d/l")
    assert volume.readlink(f"{home}/d/l") == "b"
    assert volume.stat(f"{home}/d/l").st_ino == volume.stat(f"{home}/d/a").st_ino
    assert stat.S_ISLNK(volume.stat(f"{home}/d/l", follow_symlinks=False).st_mode)
    assert sorted(volume.listdir(f"{home}/d")) == ["a", "b", "l"]
    entries = {entry.name: entry for entry in volume.scandir(f"{home}/d")}
    assert entries["a"].is_file() and entries["l"].is_symlink()
    assert entries["a"].stat().st_nlink == 2 and entries["a"].path == f"{home}/d/a"
    volume.rename(f"{home}/d/b", f"{home}/c")
    with pytest.raises(OSError) as error:
        volume.rmdir(f"{home}/d")
    assert error.value.errno == errno.ENOTEMPTY
    with pytest.raises(FileNotFoundError, match="check the spelling"):
        volume.stat(f"{home}/d/b")
    assert volume.exists(f"{home}/c") and not volume.exists(f"{home}/d/l")
    assert volume.isdir(home) and volume.isfile(f"{home}/c")


def test_attributes_are_kept(volume, home):
    path = f"{home}/f"
    volume.open(path, "wb", permissions=0o640).close()
    assert stat.S_IMODE(volume.stat(path).st_mode) == 0o640 & ~0o022
    volume.chmod(path, 0o604)
    volume.utime(path, ns=(1_000_000_001, -5))
    volume.truncate(path, 5)
    found = volume.stat(path)
    assert (found.st_mode & 0o7777, found.st_size) == (0o604, 5)
    volume.utime(path, ns=(1_000_000_001, -5))
    assert (volume.stat(path).st_atime_ns, volume.stat(path).st_mtime_ns) == (1_000_000_001, -5)
    volume.setxattr(path, "user.colour", b"red")
    assert volume.listxattr(path) == ["user.colour"]
    assert volume.getxattr(path, "user.colour") == b"red"
    volume.removexattr(path, "user.colour")
    with pytest.raises(OSError) as error:
        volume.getxattr(path, "user.colour")
    assert error.value.errno == errno.ENODATA
    total, free = volume.space()
    assert 0 < free < total


def test_names_that_are_not_text_come_back(volume, home):
    name = b"\xff\xfe odd"
    volume.open(os.fsencode(home) + b"/" + name, "wb").close()
    assert [os.fsencode(found) for found in volume.listdir(home)] == [name]


@pytest.mark.parametrize("mode", ["r", "w", "a", "x", "r+", "w+", "a+", "x+"])
@pytest.mark.parametrize("buffering", [0, -1, 100])
def test_file_objects_do_what_those_of_the_standard_library_do(volume, home, tmp_path, mode, buffering):
    draw = random.Random(f"{mode} {buffering}")
    theirs_path, ours_path = tmp_path / "f", f"{home}/f"
    if "x" not in mode:
        start = draw.randbytes(5000)
        theirs_path.write_bytes(start)
        with volume.open(ours_path, "wb") as file:
            file.write(start)
    ours = volume.open(ours_path, mode + "b", buffering)
    theirs = open(theirs_path, mode + "b", buffering)

    def same(call):
        outcomes = []
        for file in (ours, theirs):
            try:
                outcomes.append(call(file))
            except (OSError, ValueError) as error:
                outcomes.append(type(error))
        assert outcomes[0] == outcomes[1]

    for attribute in ("readable", "writable", "seekable"):
        same(lambda file: getattr(file, attribute)())
    for _ in range(300):
        data, size = draw.randbytes(draw.randrange(300)), draw.randrange(-1, 400)
        offset, whence = draw.randrange(-500, 6000), draw.randrange(3)
        call = draw.choice(
            [
                lambda file: file.write(data),
                lambda file: file.read(size),
                lambda file: file.readline(),
                lambda file: file.seek(offset, whence),
                lambda file: file.truncate(max(offset, 0)),
                lambda file: file.flush(),
                lambda file: file.readinto(bytearray(len(data))),
            ]
        )
        same(call)
        same(lambda file: file.tell())
    same(lambda file: file.close())
    same(lambda file: file.closed)
    same(lambda file: file.read(1))
    with volume.open(ours_path, "rb") as file:
        assert file.read() == theirs_path.read_bytes()


def test_modes_that_make_no_sense_are_refused(volume, home):
    for mode in ("", "q", "rw", "rbb", "b", "rt+b"):
        with pytest.raises(ValueError):
            volume.open(f"{home}/f", mode)
    with pytest.raises(ValueError):
        volume.open(f"{home}/f", "r", 0)
    with pytest.raises(FileNotFoundError):
        volume.open(f"{home}/f")
    with pytest.raises(IsADirectoryError):
        volume.open(home, "wb")


def test_text_is_read_line_by_line(volume, home):
    with volume.open(f"{home}/t", "w", encoding="utf-16", newline="\r\n") as file:
        file.write("eins\nzwei\n")
        file.sync()
    with volume.open(f"{home}/t", encoding="utf-16") as file:
        assert list(file) == ["eins\n", "zwei\n"]


def test_arrays_go_in_and_out_without_detours(volume, home):
    array = numpy.random.default_rng(1).random((300, 400))
    with volume.open(f"{home}/a", "wb", 0) as file:
        assert file.write(array) == array.nbytes
        file.sync()
    back = numpy.empty_like(array)
    with volume.open(f"{home}/a", "rb", 0) as file:
        assert file.readinto(back) == array.nbytes
        assert file.pread(8, 16) == array.tobytes()[16:24]
    assert (back == array).all()
    with volume.open(f"{home}/n.npy", "wb") as file:
        numpy.save(file, array)
    with volume.open(f"{home}/n.npy", "rb") as file:
        assert (numpy.load(file) == array).all()
    with pytest.raises(TypeError):
        with volume.open(f"{home}/b", "wb", 0) as file:
            file.write(array[:, ::2])


def test_threads_share_a_volume(volume, home):
    def work(number):
        for round_ in range(20):
            with volume.open(f"{home}/{number}", "wb") as file:
                file.write(bytes([number]) * 10_000 * round_)
            with volume.open(f"{home}/{number}", "rb") as file:
                assert file.read() == bytes([number]) * 10_000 * round_

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(volume.listdir(home)) == sorted(str(number) for number in range(8))


def _child(work, told):
    try:
        told.put(work())
    except OSError as error:
        told.put(error.errno)


def _in_child(work):
    """What `work` returns in a forked child, or the number of its error."""
    context = multiprocessing.get_context("fork")
    told = context.Queue()
    child = context.Process(target=_child, args=(work, told))
    child.start()
    outcome = told.get(timeout=60)
    child.join(60)
    assert child.exitcode == 0
    return outcome


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_child_uses_what_its_parent_has_opened(volume, home):
    with volume.open(f"{home}/f", "wb") as file:
        file.write(b"of the parent")

    def work():
        volume.makedirs(f"{home}/of-the-child")
        with volume.open(f"{home}/g", "xb") as made:
            made.write(b"of the child")
        return file.read(6)

    with volume.open(f"{home}/f", "rb", 0) as file:
        assert _in_child(work) == b"of the"
        assert file.read() == b"of the parent"
        volume.rename(f"{home}/f", f"{home}/moved")
        assert _in_child(lambda: file.read(1)) == errno.ESTALE
        with volume.open(f"{home}/f", "wb") as other:
            other.write(b"x")
        assert _in_child(lambda: file.read(1)) == errno.ESTALE
        assert file.pread(6, 0) == b"of the"
    assert sorted(volume.listdir(home)) == ["f", "g", "moved", "of-the-child"]


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_workers_that_load_data_share_a_volume(volume, home):
    """As PyTorch's DataLoader(num_workers=2) does it: the dataset with its open files is forked."""
    size, count = 1 << 16, 32
    with volume.open(f"{home}/data", "wb") as file:
        for number in range(count):
            file.write(bytes([number]) * size)
    context = multiprocessing.get_context("fork")
    with volume.open(f"{home}/data", "rb", 0) as file:

        def load(numbers, told):
            for number in numbers:
                told.put((number, file.pread(size, number * size) == bytes([number]) * size))

        told = context.Queue()
        workers = [
            context.Process(target=load, args=(range(first, count, 2), told)) for first in range(2)
        ]
        for worker in workers:
            worker.start()
        loaded = dict(told.get(timeout=60) for _ in range(count))
        for worker in workers:
            worker.join(60)
            assert worker.exitcode == 0
    assert loaded == {number: True for number in range(count)}


def test_a_closed_volume_says_so(served):
    volume = mdfs.Volume(served)
    volume.close()
    volume.close()
    with pytest.raises(ValueError, match="closed"):
        volume.listdir()


def test_a_volume_that_is_not_there_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match="mdfs format"):
        mdfs.Volume(tmp_path / "none")


def test_raw_files_are_raw_files(volume, home):
    with volume.open(f"{home}/f", "wb+", 0) as file:
        assert isinstance(file, io.RawIOBase) and isinstance(file, mdfs.RawFile)
        assert file.name == f"{home}/f" and file.mode == "rb+"
        assert "RawFile" in repr(file)


def test_a_part_of_an_array_is_written_and_read_as_a_list(volume, home):
    whole = numpy.arange(60 * 50, dtype="f8").reshape(60, 50)
    tile = mdfs.Regions.subarray(16, 8, whole.shape, (20, 10), (30, 25))
    assert (len(tile), tile.nbytes) == (20, 20 * 10 * 8)
    with volume.open(f"{home}/f", "wb+", 0) as file:
        file.pwrite(whole, 16)
        part = numpy.empty((20, 10))
        assert file.read_list_into(tile, part) == part.nbytes
        assert (part == whole[30:50, 25:35]).all()
        assert file.write_list(tile, -part) == part.nbytes
        whole[30:50, 25:35] *= -1
        assert file.pread(whole.nbytes, 16) == whole.tobytes()
        assert numpy.frombuffer(file.read_list(tile)).reshape(20, 10).tolist() == (-part).tolist()


def test_lists_are_vectors_or_pairs_in_any_order(volume, home):
    data = bytes(range(256)) * 40
    with volume.open(f"{home}/f", "wb+", 0) as file:
        file.write(data)
        assert file.read_list(mdfs.Regions.strided(5, 2, 4, 100)) == b"".join(
            data[at : at + 2] for at in range(5, 405, 100)
        )
        pairs = [(9000, 10), (3, 4), (5, 5), (0, 0)]
        expected = [data[at : at + length] for at, length in pairs]
        assert file.read_ranges(pairs) == expected
        assert file.read_list(pairs) == b"".join(expected) == file.read_list(numpy.array(pairs))
        both = mdfs.Regions.join([mdfs.Regions([(1, 2)]), mdfs.Regions.strided(7, 1, 2, 3)])
        assert file.read_list(both) == data[1:3] + data[7:8] + data[10:11]


def test_a_list_past_the_end_is_short_and_wrong_ones_are_refused(volume, home):
    with volume.open(f"{home}/f", "wb+", 0) as file:
        file.write(b"0123456789")
        assert file.read_ranges([(8, 5), (20, 3), (0, 2)]) == [b"89", b"", b"01"]
        assert file.read_list([(0, 2), (8, 5), (20, 3)]) == b"0189"
        with pytest.raises(ValueError, match="4 bytes for a list of 3"):
            file.write_list([(0, 3)], b"four")
        with pytest.raises(ValueError, match="the buffer has 2 bytes"):
            file.read_list_into([(0, 3)], bytearray(2))
        with pytest.raises((ValueError, BufferError)):
            file.read_list_into([(0, 3)], b"abc")
        with pytest.raises(ValueError, match="not within"):
            mdfs.Regions.subarray(0, 1, [4], [3], [2])
    with volume.open(f"{home}/f", "rb", 0) as file, pytest.raises(io.UnsupportedOperation):
        file.write_list([(0, 1)], b"x")


def test_buffered_files_have_lists_past_their_buffer(volume, home):
    with volume.open(f"{home}/f", "wb+") as file:
        file.write(b"0123456789")
        assert file.read_list([(8, 2), (0, 1)]) == b"890", "what is in the buffer is written first"
        file.seek(0)
        assert file.read(2) == b"01"
        assert file.write_list([(2, 1), (9, 1)], b"xy") == 2
        assert file.read() == b"x345678y", "and what was read before is forgotten"
    with volume.open(f"{home}/f") as text, volume.open(f"{home}/f", "rb") as file:
        out = numpy.zeros(3, "u1")
        assert file.read(1) == b"0" and file.read_list_into([(9, 1), (2, 1)], out) == 2
        assert out.tobytes() == b"yx\0" and file.read(2) == b"1x"
        assert text.buffer.read_ranges([(1, 2), (9, 9)]) == [b"1x", b"y"]


def test_a_volume_tells_for_how_long_its_server_is_away(tmp_path):
    directory = str(tmp_path / "volume")
    shape = "--disk-nodes 1 --disks-per-node 1 --disk-size 256MiB --nodes 4".split()
    subprocess.run([MDFS, "format", directory, *shape], check=True, capture_output=True)
    server = subprocess.Popen([MDFS, "serve", directory], stdout=subprocess.PIPE)
    try:
        assert server.stdout.readline()
        with mdfs.Volume(directory) as volume:
            assert volume.outage is None
            server.send_signal(signal.SIGSTOP)
            with ThreadPoolExecutor() as threads:
                listing = threads.submit(volume.listdir)
                _until(lambda: volume.outage is not None)
                process, seconds = volume.outage
                assert process is None and seconds >= 2
                server.send_signal(signal.SIGCONT)
                assert listing.result(timeout=60) == []
            _until(lambda: volume.outage is None)
    finally:
        server.kill()
        server.wait()


def _until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
