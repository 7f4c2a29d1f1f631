"""The command line of the doctor: `python -m` of this folder."""

import argparse
import importlib
import os
import re
import runpy
import sys
import traceback
import types

import torch

from . import examine
from .course import speak_its_language, to_read
from .program.examined import SECONDS
from .program.rounds import rounds
from .words import N_, _

WRONG, NOT_RUN, CTRL_C = 1, 2, 130  # exit statuses; the last as a shell says


def tensor(text):
    """A random tensor from "3x4" or "3x4:float32"."""
    sizes, colon, name = text.partition(":")
    dtype = getattr(torch, name if colon else "float32", None)
    is_shape = re.fullmatch(r"(\d+(x\d+)*)?", sizes)
    if not is_shape or not isinstance(dtype, torch.dtype):
        raise argparse.ArgumentTypeError(f"write 3x4 or 3x4:int64, got {text!r}")
    shape = [int(n) for n in sizes.split("x") if n]
    generator = torch.Generator().manual_seed(0)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=dtype)
    return torch.randint(0, 2, shape, generator=generator, dtype=dtype)


def trained(text):
    return tensor(text).requires_grad_()


def number(text):
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)


def load(target):
    """What "module.py:name" or "package.module:name" names.

    A module is instantiated. Ends with a sentence where there is nothing of this
    name.
    """
    path, colon, name = target.rpartition(":")
    if not colon or path.endswith(".py") and not os.path.isfile(path):
        parser().error(
            _("{target} must be module.py:name, and module.py a file", target=target)
        )
    if path.endswith(".py"):
        module = types.SimpleNamespace(**runpy.run_path(path, run_name="examined"))
    else:
        try:
            module = importlib.import_module(path)
        except ModuleNotFoundError as error:
            parser().error(f"{target}: {error}")
    if not hasattr(module, name):
        parser().error(_("{path} has no {name}", path=path, name=name))
    fn = getattr(module, name)
    return fn() if isinstance(fn, type) and issubclass(fn, torch.nn.Module) else fn


def run(argv, as_json, **options):
    """Make rounds over the program argv[0] with the arguments argv[1:]; an exit status.

    options: those of `rounds`. The status is 1 if a Function is wrong, 2 if the program
    raised, 130 after Ctrl-C while Functions were examined, otherwise the program's own.
    """
    before, status = (sys.argv, sys.path), 0
    sys.argv = argv
    sys.path = [os.path.dirname(os.path.abspath(argv[0])), *sys.path]
    made = rounds(**options)
    made.accept = "--accept={}"
    try:
        with made as found:
            try:
                runpy.run_path(argv[0], run_name="__main__")
            except SystemExit as left:
                status = left.code or 0
            except Exception:
                traceback.print_exc()
                status = NOT_RUN
    except KeyboardInterrupt:
        status = CTRL_C
    finally:
        sys.argv, sys.path = before
    if not isinstance(status, int):
        print(status, file=sys.stderr)  # as Python does
        status = 1
    show(found, as_json, (f for visit in found.visits for f in visit.findings))
    return status if found.ok else WRONG


def show(report, as_json, findings):
    if as_json:
        print(report.to_json())
    else:
        print(report, *to_read(findings), sep="\n")


def parser():
    """The options of the command line, with help in the language of the course."""
    command = f"python -m {__package__} mine.py:Scale --input 3x4 --value 2.5"
    made = argparse.ArgumentParser(
        prog=f"python -m {__package__}",
        description=_("Examine a gradient. Exit status: 0 right, 1 wrong, 2 not run."),
        epilog=_("example: {command}", command=command),
    )
    add = made.add_argument
    add("target", nargs="?", help=_("module.py:name or package.module:name"))
    add(
        "--run",
        nargs=argparse.REMAINDER,
        help=_("make rounds over script.py and its args"),
    )
    inputs = {"dest": "inputs", "action": "append", "default": []}
    shape = {"metavar": "3x4[:dtype]", **inputs}
    what = _("a random tensor, in the order of arguments")
    add("--input", type=tensor, help=what, **shape)
    what = _("one of those that require a gradient, in the order of arguments")
    add("--trained", type=trained, help=what, **shape)
    what = _("a number, in the order of arguments")
    add("--value", type=number, help=what, metavar="2.5", **inputs)
    what = _("what computes the same; it is believed")
    add("--reference", metavar="TARGET", help=what)
    add("--unfaithful", action="store_true", help="faithful=False")
    add("--json", action="store_true", help=_("print what is found as JSON"))
    what = _("before --run: for all together")
    add("--seconds", type=float, default=SECONDS, help=what)
    what = _("before --run: in a child process")
    add("--child", action="store_true", help=what)
    names = {"action": "append", "default": [], "metavar": "NAME"}
    what = _("before --run: leave out the Function of this name")
    add("--skip", help=what, **names)
    what = _("before --run: faithful=False for the Function of this name")
    add("--accept", help=what, **names)
    return made


def main(argv=None):
    """Examine what the command line names; returns the exit status."""
    speak_its_language()
    options = parser().parse_args(argv)
    if options.run:
        if not os.path.isfile(options.run[0]):
            parser().error(_("there is no file {path}", path=options.run[0]))
        if own := {"--json", "--skip", "--accept", "--child"} & {*options.run[1:]}:
            names = ", ".join(sorted(own))
            gaps = {"names": names, "script": options.run[0]}
            print(_("{names} goes to {script}: for the doctor, before --run", **gaps))
        return run(
            options.run,
            options.json,
            skip=options.skip,
            faithful=options.accept,
            seconds=options.seconds,
            child=options.child,
        )
    if not options.target or not options.inputs:
        parser().error(_("give a target and an --input, or --run script.py"))
    fn = load(options.target)
    reference = options.reference and load(options.reference)
    more = {"faithful": not options.unfaithful, "reference": reference}
    report = examine(fn, *options.inputs, **more)
    show(report, options.json, report.findings)
    if not report.examined:
        vectors = [t for t in options.inputs if getattr(t, "ndim", 0) == 1]
        if vectors and not options.json:
            line = N_(
                "--input {n} is a vector of {n} elements; a number is --value {n}"
            )
            print(_(line, n=len(vectors[0])))
        return NOT_RUN
    return 0 if report.ok else WRONG


if __name__ == "__main__":
    sys.exit(main())
