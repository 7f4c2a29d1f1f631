"""Print the Function of a plain function, with its backward.

python -m helpers.derive module.py:function --input 4x8 --input 8 [--save gate | --jvp]
"""

import argparse
import runpy
import sys

import torch

from . import Refused, derive


def shape(text):
    return [int(size) for size in text.split("x")]


def main():
    parser = argparse.ArgumentParser(
        prog="python -m helpers.derive", description=__doc__
    )
    parser.add_argument("function", help="a file, a colon, and a function of it")
    parser.add_argument(
        "--input", action="append", default=[], type=shape, help="sizes of one: 4x8"
    )
    parser.add_argument(
        "--save", default="", help="variables to keep, with commas between"
    )
    parser.add_argument("--jvp", action="store_true", help="forward mode, too")
    given = parser.parse_args()
    save = [*filter(None, given.save.split(","))]
    path, _, name = given.function.rpartition(":")
    function = runpy.run_path(path).get(name)
    inputs = [torch.rand(sizes, dtype=torch.float64) + 0.5 for sizes in given.input]
    try:
        print(derive(function, *inputs, save=save, jvp=given.jvp))
    except (Refused, TypeError) as reason:  # as of too few inputs
        sys.exit(f"no backward of {name}: {reason}")


main()
