"""The command line of the doctor: `python -m` of this folder."""

import argparse
import importlib
import importlib.util
import os
import re
import runpy
import sys
import traceback

import torch

from . import examine
from .course import to_read
from .program.bounds import SECONDS
from .program.rounds import rounds


def tensor(text):
    """A random tensor from "3x4" or "3x4:float32"."""
    match = re.fullmatch(r"(\d+(?:x\d+)*)?(?::(\w+))?", text)
    dtype = getattr(torch, (match and match[2]) or "float32", None)
    if not match or not isinstance(dtype, torch.dtype):
        raise argparse.ArgumentTypeError(f"write sizes as 3x4 or 3x4:int64, got {text!r}")
    shape = [int(n) for n in (match[1] or "").split("x") if n]
    generator = torch.Generator().manual_seed(0)
    try:
        if dtype.is_floating_point or dtype.is_complex:
            wide = torch.float32 if dtype.itemsize == 1 else dtype  # randn knows no float8
            return torch.randn(shape, generator=generator, dtype=wide).to(dtype)
        return torch.randint(0, 2, shape, generator=generator, dtype=dtype)
    except RuntimeError as error:
        why = str(error).splitlines()[0]
        raise argparse.ArgumentTypeError(f"{text} cannot be made: {why}") from None


def trained(text):
    """The same, as a tensor that requires a gradient."""
    made = tensor(text)
    if not (made.is_floating_point() or made.is_complex()):
        raise argparse.ArgumentTypeError(f"what requires a gradient is no {made.dtype}")
    return made.requires_grad_()


def number(text):
    try:
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"write a number, got {text!r}") from None


def load(target):
    """What "module.py:name" or "package.module:name" names; a module class is instantiated."""
    path, _, name = target.rpartition(":")
    if not path:
        raise ValueError(f"target must be module.py:name or package.module:name, got {target!r}")
    if path.endswith(".py"):
        spec = importlib.util.spec_from_file_location("examined", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(path)
    fn = getattr(module, name)
    if not callable(fn):
        raise TypeError(f"{name} cannot be called, it is {type(fn).__name__}")
    return fn() if isinstance(fn, type) and issubclass(fn, torch.nn.Module) else fn


def run(argv, **options):
    """Make rounds over the program argv[0], with the arguments argv[1:]; returns the exit status.

    options: those of `rounds`. The status is 1 if a Function is wrong, 2 if the program raised, 130
    after Ctrl-C while Functions were examined, otherwise the program's own.
    """
    kept, status = (sys.argv, sys.path), 0
    sys.argv, sys.path = argv, [os.path.dirname(os.path.abspath(argv[0])), *sys.path]
    try:
        made = rounds(**options)
        made.advice = "--accept={}"
        with made as found:
            try:
                runpy.run_path(argv[0], run_name="__main__")
            except SystemExit as left:
                status = left.code
            except Exception:
                traceback.print_exc()
                status = 2
    except KeyboardInterrupt:
        status = 130  # as a shell says
    finally:
        sys.argv, sys.path = kept
    if not isinstance(status, (int, type(None))):
        print(status, file=sys.stderr)  # as Python does
        status = 1
    read = to_read(finding for visit in found.visits for finding in visit.findings)
    print(found, *read, sep="\n")
    return (status or 0) if found.ok else 1


def main(argv=None):
    """Examine what the command line names; returns the exit status, 1 if there is an error.

    What cannot be examined (no such file, name or shape) ends with status 2 and one sentence.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {__package__}",
        description="Examine the gradient of a function. Exit status: 0 right, 1 wrong, 2 not run.",
        epilog=f"example: python -m {__package__} mine.py:Scale --input 3x4 --value 2.5",
    )
    parser.add_argument("target", nargs="?", help="module.py:name or package.module:name")
    parser.add_argument(
        "--run", nargs=argparse.REMAINDER, metavar=("script.py", "args"),
        help="run a program, and examine every Function that it applies",
    )  # fmt: skip
    for name, kind, shown, what in (
        ("--input", tensor, "3x4[:dtype]", "a random tensor"),
        ("--trained", trained, "3x4[:dtype]", "one that requires a gradient; others are constants"),
        ("--value", number, "2.5", "a number"),
    ):  # fmt: skip
        parser.add_argument(
            name, dest="inputs", action="append", type=kind, default=[], metavar=shown,
            help=f"{what}, in the order of arguments",
        )  # fmt: skip
    parser.add_argument("--unfaithful", action="store_true", help="faithful=False")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--seconds", type=number, default=SECONDS, metavar="60",
        help="before --run: how long all examinations may take together",
    )  # fmt: skip
    for name, what in (("--skip", "leave out"), ("--accept", "faithful=False for")):
        parser.add_argument(
            name, action="append", default=[], metavar="NAME",
            help=f"before --run: {what} the Function of this name",
        )  # fmt: skip
    options = parser.parse_args(argv)
    if options.run and not os.path.isfile(options.run[0]):
        parser.error(f"there is no file {options.run[0]}")
    if options.run:
        limits = {"seconds": options.seconds, "skip": options.skip}
        return run(options.run, faithful=options.accept, **limits)
    if options.run is not None or options.target is None:
        parser.error("give a target such as module.py:name, or --run script.py")
    if not any(isinstance(value, torch.Tensor) for value in options.inputs):
        parser.error("give at least one --input, such as --input 3x4")
    try:
        fn = load(options.target)
    except Exception as error:
        parser.error(f"{options.target} cannot be loaded: {type(error).__name__}: {error}")
    report = examine(fn, *options.inputs, faithful=not options.unfaithful)
    if options.json:
        print(report.to_json())
    else:
        print(report, *to_read(report.findings), sep="\n")
    return 0 if report.ok else 1 if report.examined else 2


if __name__ == "__main__":
    sys.exit(main())
