"""Operations, doctor, derive and template on another torch: which tests pass there.

    python -m tools.other_torch 2.10.0 [--keep FOLDER]
    python -m tools.other_torch newest

Makes a virtual environment with that torch and what the tests need, of the Python that
runs this, runs the tests of each in it, and prints a table and what failed. FOLDER is
where the environment is made and left; one that is there already is used as it is.
`PIP_EXTRA_INDEX_URL` chooses the build, as for any pip.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import venv
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUITES = {
    "operations": ["tests/ops", "tests/involution", "tests/legacy", "tests/processes"],
    "doctor": ["tests/doctor"],
    "derive": ["tests/derive"],
    "template": ["tests/test_template.py"],
}
# They hang on the version of torch, or are not needed without a GPU or notebooks.
LEFT_OUT = (
    "torch",
    "triton",
    "cupy",
    "cuda-toolkit",
    "jupyterlab",
    "-e",
    "./tools/lab",
)


def requirements(version):
    """What to install: that torch, which may cap setuptools, and the other pins."""
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pins = [line.split("#")[0].strip() for line in lines]
    kept = [pin for pin in pins if pin and not pin.startswith(LEFT_OUT)]
    kept = ["setuptools>=77" if pin.startswith("setuptools") else pin for pin in kept]
    torch = "torch" if version == "newest" else f"torch=={version}"
    return [torch, *kept, "ipykernel"]  # nbval, which conftest.py loads, wants one


def environment(folder, version):
    """The Python of a virtual environment in `folder`, made unless it is there."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        venv.create(folder, with_pip=True)
        install = [python, "-m", "pip", "install", "--quiet", *requirements(version)]
        subprocess.run(install, check=True)
    return python


def run(python, paths, report):
    path = os.pathsep.join([str(python.parent), os.environ["PATH"]])  # where ninja is
    variables = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
    command = [
        python,
        "-m",
        "pytest",
        "-q",
        "--tb=line",
        f"--junitxml={report}",
        *paths,
    ]
    subprocess.run(command, cwd=ROOT, env=variables, check=False)
    return result(report)


def result(report):
    """({"passed": ...}, the names of failed tests) of a JUnit report."""
    suite = ET.parse(report).getroot().find("testsuite")
    cases = [(f"{c.get('classname')}.{c.get('name')}", {e.tag for e in c})
             for c in suite.iter("testcase")]  # fmt: skip
    failed = [name for name, tags in cases if tags & {"failure", "error"}]
    skipped = sum("skipped" in tags for _, tags in cases)
    counts = {"passed": len(cases) - len(failed) - skipped, "failed": len(failed)}
    return counts | {
        "skipped": skipped,
        "seconds": round(float(suite.get("time"))),
    }, failed


def table(version, results):
    rows = [("torch " + version, *next(iter(results.values()))[0])]
    rows += [(name, *counts.values()) for name, (counts, _) in results.items()]
    text = ["{:14} {:>7} {:>7} {:>8} {:>8}".format(*row) for row in rows]
    text += [f"failed: {name}" for _, failed in results.values() for name in failed]
    return "\n".join(text)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m tools.other_torch", description=__doc__
    )
    parser.add_argument("version", help="such as 2.10.0, or newest")
    parser.add_argument("--keep", metavar="FOLDER", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary, "venv")
        python, report = (
            environment(folder, options.version),
            Path(temporary, "report.xml"),
        )
        results = {name: run(python, paths, report) for name, paths in SUITES.items()}
    print(table(options.version, results))
    return int(any(failed for _, failed in results.values()))


if __name__ == "__main__":
    sys.exit(main())
