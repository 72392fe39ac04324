"""Heat in a square plate, with checkpoints by zarr in an MDFS volume: whenever the program is killed, the
next run goes on from the last whole checkpoint, and the result is the same to the last bit.

    python heat_zarr.py /srv/mdfs/volume /heat 512 2000 100 result.npy

Two arrays take turns. Which of them is whole, and how far it got, says a small file that is made durable
beside the one before, and then gets its name: a rename is whole or not done.
"""

import argparse
import json

import mdfs
import numpy
import zarr


def url_of(volume, path):
    """The URL of a path in the volume, for fsspec."""
    address = volume.directory
    return f"{address}:{path}" if address.startswith("mdfs://") else f"mdfs://{address}:{path}"


def checkpoint(volume, directory, plate, step, number):
    """Writes the plate as it is after `step` steps, by the array that is not the last whole one."""
    name = f"plate-{number % 2}.zarr"
    url = url_of(volume, f"{directory}/{name}")
    rows = max(1, plate.shape[0] // 8)
    array = zarr.create_array(
        url, shape=plate.shape, chunks=(rows, plate.shape[1]), dtype="f8", overwrite=True
    )
    array[:] = plate
    volume.sync()  # all chunks are durable before anything says that they are there
    with volume.open(f"{directory}/checkpoint.new", "wb") as file:
        file.write(json.dumps({"step": step, "number": number, "array": name}).encode())
        file.sync()
    volume.rename(f"{directory}/checkpoint.new", f"{directory}/checkpoint")


def restart(volume, directory, size):
    """The last whole checkpoint: its plate, step and number; without one, the start."""
    if not volume.exists(f"{directory}/checkpoint"):
        plate = numpy.zeros((size, size))
        plate[0] = 100.0  # one hot edge
        return plate, 0, 0
    with volume.open(f"{directory}/checkpoint", "rb") as file:
        last = json.loads(file.read())
    array = zarr.open_array(url_of(volume, f"{directory}/{last['array']}"), mode="r")
    if array.shape != (size, size):
        raise SystemExit(f"restart: the checkpoint in {directory} is of another plate; remove it")
    return array[:], last["step"], last["number"]


def spread(plate):
    """One step of time: each point becomes the mean of its four neighbours. The edges stay."""
    after = plate.copy()
    after[1:-1, 1:-1] = 0.25 * (
        plate[1:-1, :-2] + plate[1:-1, 2:] + plate[:-2, 1:-1] + plate[2:, 1:-1]
    )
    return after


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("volume", help="the directory of the volume, or mdfs://HOST/VOLUME")
    parser.add_argument("directory", help="where the checkpoints are in it, as in /heat")
    for name in ("size", "steps", "every"):
        parser.add_argument(name, type=int)
    parser.add_argument("result", help="a file of this computer, .npy")
    given = parser.parse_args()

    with mdfs.Volume(given.volume) as volume:
        volume.makedirs(given.directory, exist_ok=True)
        plate, step, number = restart(volume, given.directory, given.size)
        print(f"from step {step}", flush=True)
        while step < given.steps:
            plate = spread(plate)
            step += 1
            if step % given.every == 0 or step == given.steps:
                number += 1
                checkpoint(volume, given.directory, plate, step, number)
    numpy.save(given.result, plate)


main()
