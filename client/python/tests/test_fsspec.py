"""fsspec's own tests, and the libraries that come in through it."""

import fsspec
import h5py
import numpy
import pytest
import zarr
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)

import mdfs
from mdfs.fsspec import MdfsFileSystem, _split


class Fixtures(AbstractFixtures):
    @pytest.fixture
    def fs(self, served):
        return MdfsFileSystem(served)

    @pytest.fixture
    def fs_path(self, fs):
        fs.makedirs("/abstract")
        yield "/abstract"
        fs.rm("/abstract", recursive=True)


class TestCopy(AbstractCopyTests, Fixtures):
    pass


class TestGet(AbstractGetTests, Fixtures):
    pass


class TestOpen(AbstractOpenTests, Fixtures):
    pass


class TestPipe(AbstractPipeTests, Fixtures):
    pass


class TestPut(AbstractPutTests, Fixtures):
    pass


def test_a_url_names_volume_and_path(served, volume, home):
    url = f"mdfs://{served}:{home}/f"
    with fsspec.open(url, "wb") as file:
        file.write(b"by url")
    filesystem, path = fsspec.url_to_fs(url)
    assert isinstance(filesystem, MdfsFileSystem) and path == f"{home}/f"
    assert filesystem.cat_file(path) == b"by url"
    assert filesystem.cat_file(path, 3) == b"url" == filesystem.cat_file(path, -3)
    assert filesystem.cat_file(path, 0, 2) == b"by" and filesystem.cat_file(path, 9, 20) == b""
    assert filesystem.unstrip_protocol(path) == url
    with fsspec.open_files(f"mdfs://{served}:{home}/*") as files:
        assert [file.read() for file in files] == [b"by url"]
    with pytest.raises(FileNotFoundError):
        MdfsFileSystem(served, auto_mkdir=False).touch(f"{home}/missing/f")
    with pytest.raises(ValueError, match="which volume"):
        fsspec.filesystem("mdfs")


def test_the_rest_of_the_interface(served, volume, home):
    filesystem = MdfsFileSystem(served)
    filesystem.touch(f"{home}/a")
    filesystem.symlink(f"{home}/a", f"{home}/l")
    filesystem.link(f"{home}/a", f"{home}/b")
    filesystem.mkdir(f"{home}/d/e")
    assert filesystem.info(f"{home}/l")["destination"] == f"{home}/a"
    assert filesystem.info(f"{home}/l")["type"] == "file"
    assert sorted(filesystem.ls(home, detail=False)) == [f"{home}/{name}" for name in "abdl"]
    assert {told["type"] for told in filesystem.ls(home)} == {"file", "directory"}
    filesystem.mv(f"{home}/b", f"{home}/d")
    assert filesystem.find(home) == [f"{home}/a", f"{home}/d/b", f"{home}/l"]
    assert filesystem.lexists(f"{home}/l") and not filesystem.exists(f"{home}/b")
    with pytest.raises(ValueError):
        filesystem.rm(f"{home}/d")
    with pytest.raises(FileExistsError):
        filesystem.mkdir(f"{home}/d")
    filesystem.rm([f"{home}/d", f"{home}/l"], recursive=True)
    assert filesystem.ls(home, detail=False) == [f"{home}/a"]
    assert filesystem.modified(f"{home}/a") >= filesystem.created(f"{home}/a")


def test_ranges_of_one_file_are_one_list(served, volume, home, monkeypatch):
    filesystem = MdfsFileSystem(served)
    filesystem.pipe({f"{home}/a": bytes(range(200)), f"{home}/b": b"b" * 50})
    lists = []
    read_ranges = mdfs.RawFile.read_ranges
    monkeypatch.setattr(
        mdfs.RawFile, "read_ranges", lambda file, ranges: lists.append(ranges) or read_ranges(file, ranges)
    )
    paths = [f"{home}/a", f"mdfs://{served}:{home}/b", f"{home}/a", f"{home}/a", f"{home}/none"]
    told = filesystem.cat_ranges(paths, [0, 40, -5, 190, 0], [10, None, None, 300, 1])
    data = bytes(range(200))
    assert told[:4] == [data[:10], b"b" * 10, data[-5:], data[190:]]
    assert isinstance(told[4], FileNotFoundError) and [len(ranges) for ranges in lists] == [3, 1]
    assert filesystem.cat_ranges([f"{home}/b"] * 2, 1, 3) == [b"bb", b"bb"]
    with pytest.raises(FileNotFoundError):
        filesystem.cat_ranges([f"{home}/none"], [0], [1], on_error="raise")
    with pytest.raises(ValueError):
        filesystem.cat_ranges([f"{home}/a"], [0, 1], [1])


def test_zarr_keeps_arrays(served, volume, home):
    data = numpy.random.default_rng(2).random((200, 300))
    url = f"mdfs://{served}:{home}/field.zarr"
    zarr.save_array(url, data)
    array = zarr.open_array(url, mode="r+")
    assert (array[:] == data).all()
    array[10:20, 5] = 1
    assert (zarr.open_array(url, mode="r")[10:20, 5] == 1).all()


def test_h5py_keeps_arrays(volume, home):
    data = numpy.arange(100_000).reshape(100, 1000)
    with volume.open(f"{home}/f.h5", "wb+") as file, h5py.File(file, "w") as store:
        store.create_dataset("x", data=data, chunks=(10, 100), compression="gzip")
        store["x"].attrs["unit"] = "m"
    with volume.open(f"{home}/f.h5", "rb") as file, h5py.File(file, "r") as store:
        assert (store["x"][:] == data).all() and store["x"].attrs["unit"] == "m"


def test_urls_name_volumes_of_this_and_of_other_hosts():
    split = _split
    assert split("mdfs:///srv/a/vol:/run/f") == ("/srv/a/vol", "/run/f")
    assert split("mdfs://vol:/run/f") == ("vol", "/run/f")
    assert split("mdfs:a/vol:/run/f") == ("a/vol", "/run/f")
    assert split("mdfs://h/vol/run/f") == ("mdfs://h/vol", "/run/f")
    assert split("mdfs://h:1,[::1]:2/vol:/run/f") == ("mdfs://h:1,[::1]:2/vol", "/run/f")
    assert split("mdfs://h/vol/a:/b") == ("mdfs://h/vol", "/a:/b")
    assert split("mdfs://h/vol") == ("mdfs://h/vol", "/")
    assert split("/run/f") == (None, "/run/f")
    url = "mdfs://h:1/vol/run"
    assert MdfsFileSystem._get_kwargs_from_urls(url) == {"volume": "mdfs://h:1/vol"}
    assert MdfsFileSystem._strip_protocol(url) == "/run"


def test_a_bad_address_is_refused_with_the_right_form():
    with pytest.raises(ValueError, match="names no host; write mdfs://HOST"):
        mdfs.Volume("mdfs://a b/vol")
