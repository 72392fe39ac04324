"""The examples, as they are in the folder."""

import json
import pathlib
import subprocess
import sys
import time

import numpy

SOLVER = pathlib.Path(__file__).parents[1] / "examples" / "heat_zarr.py"


def test_a_solver_that_is_killed_and_started_again_ends_with_the_same_bits(
    served, volume, home, tmp_path
):
    def solve(folder, steps, result):
        line = [SOLVER, served, f"{home}/{folder}", 64, steps, 3, tmp_path / result]
        return [sys.executable, *map(str, line)]

    def reached():
        if not volume.exists(f"{home}/killed/checkpoint"):
            return 0
        with volume.open(f"{home}/killed/checkpoint", "rb") as file:
            return json.loads(file.read())["step"]

    step = 0
    for round in range(3):
        # Long enough that it is never done before it is killed.
        solver = subprocess.Popen(solve("killed", 10**9, "unused"))
        until = time.monotonic() + 120
        while reached() <= step:
            assert time.monotonic() < until and solver.poll() is None
            time.sleep(0.01)
        time.sleep(0.013 * round)
        solver.kill()
        assert solver.wait() != 0
        step = reached()
    for folder in ("killed", "straight"):
        subprocess.run(solve(folder, step + 10, f"{folder}.npy"), check=True)
    killed, straight = (numpy.load(tmp_path / f"{name}.npy") for name in ("killed", "straight"))
    assert killed[1, 1] > 0 and killed.tobytes() == straight.tobytes()
