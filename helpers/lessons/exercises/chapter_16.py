"""Exercises of chapter 16: ship it."""

import contextlib
import functools
import io
import logging
import re
import tempfile
import zipfile
from pathlib import Path

import torch
from torch import nn

from helpers.lessons.exercise import Exercise
from helpers.lessons.judge.numbers import as_tuple, first_line
from helpers.lessons.language import N_, _, followed, listed
from helpers.lessons.shipping import BACKEND, BackendError, packed_by_setuptools

PYPROJECT = """
[build-system]
requires = ["setuptools>=77.0.3"]
build-backend = "setuptools.build_meta"

[project]
name = "fast-scans"
version = "1.0"

[tool.setuptools.packages.find]
where = ["src"]

[tool.setuptools.package-data]
fast_scans = ["lib/*.so", "*.json"]
"""
WANTED = (
    "fast_scans/__init__.py",
    "fast_scans/lib/_cpu.abi3.so",
    "fast_scans/decays.json",
)
FILES = (*(f"src/{name}" for name in WANTED), "tests/test_scans.py")


def _complete(pyproject):
    logging.getLogger("setuptools").setLevel(logging.ERROR)
    try:
        packed = packed_by_setuptools(pyproject, FILES)
    except BackendError as error:
        yield _(
            "keep setuptools as its backend, {right!r}; got {given!r}.",
            right=BACKEND,
            given=error.args[0],
        )
    except Exception as error:
        yield _("setuptools cannot read it: {line}", line=first_line(error))
    strange = [file for file in packed if file not in WANTED]
    for file in strange:
        if file.startswith("src/"):
            yield _(
                "the wheel holds `{file}`, so users would have to write `import "
                "src.fast_scans`. In which folder should setuptools look for "
                "packages?",
                file=file,
            )
    for file in WANTED:
        if file not in packed:
            kind = "package-data" if file != WANTED[0] else "packages"
            hint = _(
                "A key is what you import; a pattern is relative to that package's "
                "folder."
            )
            names = ", ".join(f"`{name}`" for name in packed) or _("nothing")
            wrong = _(
                "the wheel lacks `{file}`; it holds {packed}. Look at {kind}.",
                file=file,
                packed=names,
                kind=kind,
            )
            yield followed(wrong, hint if "data" in kind else None)
    if strange:
        yield _("the wheel holds `{strange}`, which no user needs.", strange=strange[0])


FIND = 'where = ["src"]'
EXERCISE_1 = Exercise(
    number="16.1",
    name="pyproject.toml",
    reference=PYPROJECT,
    stub={FIND: 'include = ["*"]', '"lib/*.so", "*.json"': '"*.so"'},
    wrong=[
        ({FIND: 'include = ["*"]'}, "the wheel holds `src/fast_scans/"),
        ({'"lib/*.so", ': ""}, "the wheel lacks `fast_scans/lib/_cpu.abi3.so`"),
        ({'version = "1.0"': 'version = "1.0'}, "setuptools cannot read it"),
        (
            {"build_meta": "buildmeta"},
            "keep setuptools as its backend, 'setuptools.build_meta'; got",
        ),
    ],
    properties=[_complete],
    success="setuptools finds the package in src, and packs its two files that are "
    "not Python. The tag is still py3-none-any: do not publish the wheel "
    "before setup.py changes that.",
    hints=(
        "Two things are wrong: where setuptools looks for packages, and which files "
        "it adds.",
        "[tool.setuptools.packages.find] takes where = [a folder].",
        "A pattern of package-data begins in the package's own folder, and * does "
        "not match across folders.",
    ),
    explanation="Without `where`, setuptools takes src itself for a package. The "
    "library is in a folder of the package, so its pattern begins with lib/.",
)


def problems(wheel):
    found = []
    with zipfile.ZipFile(wheel) as contents:
        names = contents.namelist()
        (info,) = [name for name in names if name.endswith(".dist-info/WHEEL")]
        tags = re.findall("^Tag: (.*)$", contents.read(info).decode(), re.MULTILINE)
    libraries = [name for name in names if name.endswith((".so", ".pyd"))]
    for tag in tags:
        if tag.endswith("-any") and libraries:
            found.append(f"{libraries[0]} is for one platform, but the tag is {tag}")
        if not tag.endswith("-any") and not libraries:
            found.append(f"the tag is {tag}, but there is no library")
    return found


MODULES, SO, PYD = ("__init__.py", "data.sorted.json"), "_cpu.abi3.so", "_cpu.pyd"
LINUX, WINDOWS = "cp311-abi3-manylinux_2_28_x86_64", "cp311-abi3-win_amd64"
MACOS, ANY_PYTHON = "cp311-abi3-macosx_11_0_arm64", "py3-none-manylinux_2_28_x86_64"
FOLDER, OLDER = "lib/_fast.so", "cp311-abi3-manylinux_2_27_x86_64"
WHEELS = {  # says: a library besides MODULES, tags, whether there is a problem
    N_("a good wheel for Linux"): (SO, LINUX, False),
    N_("a good wheel for Windows"): (PYD, WINDOWS, False),
    N_("a good wheel of Python only"): (None, "py3-none-any", False),
    N_("a good wheel for every Python on Linux"): (SO, ANY_PYTHON, False),
    N_("release 1.1 for Linux"): (None, LINUX, True),
    N_("a good wheel for macOS"): (SO, MACOS, False),
    N_("release 1.1 for macOS"): (None, MACOS, True),
    N_("release 1.1 for Python 3.12"): (None, "cp312-cp312-linux_x86_64", True),
    N_("release 1.2 for Linux"): (SO, "py3-none-any", True),
    N_("release 1.2 for Windows"): (PYD, "py3-none-any", True),
    N_("release 1.2 for Python 2"): (SO, "py2-none-any", True),
    N_("release 1.2 under abi3"): (SO, "cp311-abi3-any", True),
    N_("release 1.2 with both tags"): (SO, (LINUX, "py3-none-any"), True),
    N_("release 1.2 with both tags, any first"): (SO, ("py3-none-any", LINUX), True),
    N_("release 1.2 with its library in a folder"): (FOLDER, "py3-none-any", True),
    N_("a good wheel with its library in a folder"): (FOLDER, LINUX, False),
    N_("a good wheel with two tags"): (SO, (LINUX, OLDER), False),
    N_("a good wheel of Python only, with two tags"): (
        None,
        ("py2-none-any", "py3-none-any"),
        False,
    ),
}


def _catches(attempt):
    with tempfile.TemporaryDirectory() as folder:
        for n, (says, (library, tags, bad)) in enumerate(WHEELS.items()):
            files = [*MODULES, library] if library else MODULES
            tags = as_tuple(tags)
            parts = zip(*(tag.split("-") for tag in tags), strict=True)
            # Of all tags.
            name = "-".join(".".join(dict.fromkeys(part)) for part in parts)
            path = Path(folder) / f"many_scans-1.{n}-{name}.whl"
            with zipfile.ZipFile(path, "w") as wheel:
                for file in files:
                    wheel.writestr(f"many_scans/{file}", "")
                lines = "".join(f"Tag: {tag}\n" for tag in tags)
                pure = str(all(tag.endswith("-any") for tag in tags)).lower()
                head = f"Wheel-Version: 1.0\nRoot-Is-Purelib: {pure}\n"
                wheel.writestr(f"many_scans-1.{n}.dist-info/WHEEL", head + lines)
            given = attempt(path)
            if not isinstance(given, list):
                yield _(
                    "it must return a list, got a value of type {kind}.",
                    kind=type(given).__name__,
                )
            what = _(
                "the package's files are {files}, the tag {tags}",
                files=", ".join(files),
                tags=listed(tags, last=" and "),
            )
            if bad and not given:
                yield _("{says} goes through: {what}.", says=_(says), what=what)
            if given and not bad:
                yield _(
                    "{says} is refused: {what}. It says: {given}",
                    says=_(says),
                    what=what,
                    given=given[0],
                )
            if not all(
                isinstance(sentence, str) and sentence.strip() for sentence in given
            ):
                yield _("what it returns is a list, but not of sentences.")


EXERCISE_2 = Exercise(
    number="16.2",
    reference=problems,
    wrong=[
        (
            {'if tag.endswith("-any") and libraries': "if False"},
            "release 1.2 for Linux goes through",
        ),
        (
            {'if not tag.endswith("-any") and': "if False and"},
            "release 1.1 for Linux goes through",
        ),
        (
            {'not tag.endswith("-any") and': ""},
            "a good wheel of Python only is refused",
        ),
        (
            {'found.append(f"{libraries[0]}': 'found.append(0 and f"{libraries[0]}'},
            "not of sentences",
        ),
        (  # only the two tags that the text names
            {
                'if tag.endswith("-any")': 'if tag == "py3-none-any"',
                'if not tag.endswith("-any")': 'if tag.startswith("cp311-abi3")',
            },
            "goes through",
        ),
    ],
    properties=[_catches],
    success="it would have caught both releases, and it lets every good wheel through.",
    hints=(
        "A wheel is a zip file: zipfile.ZipFile(wheel) has namelist() and read(name).",
        "Two facts: is there a library, and is there a tag that ends in -any? They "
        "must differ.",
        "Look at the end of a name. Other names have the same letters in the middle.",
    ),
    explanation="A library is for one platform, and a tag that ends in -any is for all "
    "of them. Both together are wrong, and so is neither.",
)


SCHEMA = (
    "scan(Tensor x, Tensor decay, bool reverse=False, *, float scale=1.0) -> Tensor"
)
FIRST_RELEASE = "scan(Tensor x, Tensor decay, bool reverse=False) -> Tensor"
NAMESPACE = "exercise_16_3"
FACTORS = (
    "float",
    "number",
    "Optional[float]",
    "Optional[number]",
    "Optional[Tensor]",
    "Tensor",
)
X, DECAY = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0.5, 0.25, 0.5])


def _scan(x, decay, reverse, scale):
    y, steps = torch.zeros(()), list(zip(x, decay, strict=True))
    result = []
    for x_t, decay_t in reversed(steps) if reverse else steps:
        y = decay_t * y + x_t
        result.append(y)
    return scale * torch.stack(result[::-1] if reverse else result)


@contextlib.contextmanager
def _released(schema):
    """The operator of that release, its kernel by the schema's names."""
    arguments = torch._C.parse_schema(f"{NAMESPACE}::{schema}").arguments

    def kernel(*args, **kwargs):
        given = {a.name: a.default_value for a in arguments if a.has_default_value()}
        given |= dict(zip((a.name for a in arguments), args, strict=False)) | kwargs
        scale = given.pop("scale", None)
        x, decay = (v for v in given.values() if torch.is_tensor(v))
        # If renamed.
        reverse = given.get("reverse", any(v is True for v in given.values()))
        return _scan(x, decay, reverse, 1.0 if scale is None else scale)

    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    try:
        library.define(schema)
        library.impl("scan", kernel, "CPU")
        fake = lambda *args, **kwargs: torch.empty_like(args[0])  # noqa: E731
        torch.library.register_fake(f"{NAMESPACE}::scan", fake, lib=library)
        yield getattr(torch.ops, NAMESPACE).scan
    finally:
        library._destroy()


class _Calls(nn.Module):
    def __init__(self, reverse):
        super().__init__()
        self.reverse = reverse

    def forward(self, x, decay):
        return getattr(torch.ops, NAMESPACE).scan(x, decay, reverse=self.reverse)


@functools.cache
def _saved():
    """What a program was saved with -> the file, and what it gave."""
    files = {}
    with _released(FIRST_RELEASE):
        for reverse in (False, True):
            file, model = io.BytesIO(), _Calls(reverse)
            torch.export.save(torch.export.export(model, (X, DECAY)), file)
            files[f"reverse={reverse}"] = file.getvalue(), model(X, DECAY)
    return files


def _keeps_programs_right(schema):
    if not isinstance(schema, str):
        yield _(
            "give check the schema, a string; got a value of type {kind}.",
            kind=type(schema).__name__,
        )
    schema = schema.strip()
    try:
        parsed = torch._C.parse_schema(f"{NAMESPACE}::{schema}")
    except (RuntimeError, ValueError) as error:
        order = re.search(
            "Non-default positional argument follows default argument", str(error)
        )
        line = order[0] if order else first_line(error).rstrip(".:")
        yield _("PyTorch cannot read it: {line}.", line=line)
    if (parsed.name, parsed.overload_name) != (f"{NAMESPACE}::scan", ""):
        yield _(
            "programs that were saved call `scan`, so the name must stay; here it is "
            "`{name}`.",
            name=schema.partition("(")[0],
        )
    if [str(r.type) for r in parsed.returns] != ["Tensor"]:
        returns = schema.rpartition("->")[2].strip()
        yield _(
            "old programs expect the one Tensor of release 1; here they get "
            "`{returns}`.",
            returns=returns,
        )
    aliases = [v.alias_info for v in (*parsed.arguments, *parsed.returns)]
    if any(alias and alias.is_write for alias in aliases):
        yield _("`!` says that an argument is changed in place; none is.")
    if any(aliases):
        yield _(
            "`Tensor(a)` says that the result shares the memory of an argument; it "
            "does not."
        )
    scale = {a.name: a for a in parsed.arguments}.get("scale")
    kind = scale and str(scale.type)
    if scale and kind not in FACTORS:
        yield _("`scale` is a factor, any number, and here it is `{kind}`.", kind=kind)
    _saved()
    # Torch.export would log a page for a program that fails.
    logging.disable(logging.ERROR)
    try:
        yield from _wrong_programs(schema)
    finally:
        logging.disable(logging.NOTSET)
    if scale is None:
        yield _("old programs stay right, but there is no argument `scale`.")


def _wrong_programs(schema):
    for name, (file, expected) in _saved().items():
        with _released(schema):
            try:
                given = torch.export.load(io.BytesIO(file)).module()(X, DECAY)
            except Exception:
                yield _(
                    "a program saved with {name} cannot be loaded and run any more. "
                    "Which argument does the new schema want that the file lacks, or "
                    "has elsewhere?",
                    name=name,
                )
        if not torch.equal(given, expected):
            yield _(
                "a program saved with {name} runs, and gives {given} instead of "
                "{right}, silently. The file holds only what differed from release "
                "1's defaults. What does your release give for all else, and where "
                "does it put what the file holds?",
                name=name,
                given=given.tolist(),
                right=expected.tolist(),
            )


EXERCISE_3 = Exercise(
    number="16.3",
    name="SCHEMA",
    reference=SCHEMA,
    stub={"x, ": "x, float scale, ", "False, *, float scale=1.0": "True"},
    wrong=[
        (
            {"reverse=False": "reverse=True"},
            "saved with reverse=False runs, and gives",
        ),
        (
            {"*, float scale=1.0": "float scale"},
            "Non-default positional argument follows default",
        ),
        (
            {"scale=1.0": "scale"},
            "saved with reverse=False cannot be",
        ),
        ({"Tensor x": "Tensor(a) x", "-> Tensor": "-> Tensor(a)"}, "shares the memory"),
        (
            {"-> Tensor": "-> Tensor[]"},
            "the one Tensor of release 1; here they get `Tensor[]`",
        ),
    ],
    properties=[_keeps_programs_right],
    success="saved programs find every argument where it was, and the default of "
    "`scale`, which they do not know, leaves their results as they were.",
    hints=(
        "Look at the picture: which row is right in both columns?",
        "Take each argument of release 1: does an old file find it where it was, and "
        "what does it get where the file says nothing?",
        "Where can `scale` go so that nothing else moves, and what must its default "
        "be for a file that does not contain it?",
    ),
    explanation="Add the argument at the end, with a default that preserves the old "
    "meaning. The star is a matter of taste. Users who want reverse=True "
    "still pass it.",
)
