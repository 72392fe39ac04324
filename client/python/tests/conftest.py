"""Volumes for the tests: made anew with the program `mdfs`, in $MDFS or on the PATH."""

import os
import subprocess

import pytest

import mdfs

MDFS = os.environ.get("MDFS", "mdfs")


@pytest.fixture(scope="session")
def directory(tmp_path_factory):
    """A new volume that is not served."""
    path = tmp_path_factory.mktemp("mdfs") / "volume"
    shape = "--disk-nodes 2 --disks-per-node 1 --disk-size 512MiB --nodes 8".split()
    subprocess.run([MDFS, "format", str(path), *shape], check=True, capture_output=True)
    return str(path)


@pytest.fixture(scope="session")
def served(directory):
    """The same volume, served."""
    server = subprocess.Popen(
        [MDFS, "serve", directory, "--nfs", "127.0.0.1:0"], stdout=subprocess.PIPE
    )
    assert server.stdout.readline()
    yield directory
    server.terminate()
    assert server.wait(timeout=60) == 0


@pytest.fixture
def volume(served):
    with mdfs.Volume(served) as volume:
        yield volume


@pytest.fixture
def home(volume, request):
    """A directory of the test's own."""
    path = "/" + request.node.name.replace("/", "_")
    volume.makedirs(path)
    yield path
    volume.rmtree(path)
