"""The installed package: what was in the wheel, and whether its tag tells the truth."""

import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution

import my_package as package
import pytest

WHEEL = distribution("my_package")
TAGS = re.findall(r"^Tag: (.*)$", WHEEL.read_text("WHEEL"), re.MULTILINE)
FILES = {path.name: path for path in WHEEL.files if path.parts[0] == "my_package"}
LIBRARIES = [path.locate() for path in FILES.values() if path.suffix in (".so", ".pyd")]

if any("editable" in path.name for path in WHEEL.files):
    pytest.skip("an editable install has no wheel to look at", allow_module_level=True)


def test_what_is_imported_came_out_of_the_wheel():
    assert FILES["__init__.py"].locate().samefile(package.__file__)
    for path in FILES.values():
        assert path.locate().exists(), f"{path} is listed and not there"


def test_a_wheel_for_one_platform_has_its_library_and_no_other_has():
    of_a_platform = not any(tag.endswith("-any") for tag in TAGS)
    assert of_a_platform == ("cpu" in package.COMPILED), TAGS
    assert of_a_platform == any(path.name.startswith("_cpu.") for path in LIBRARIES), TAGS


def test_the_tag_promises_every_python():
    expected = "cp311-abi3" if LIBRARIES else "py3-none"
    assert all(tag.startswith(f"{expected}-") for tag in TAGS), TAGS


@pytest.mark.skipif(
    not shutil.which("nm") or sys.platform == "win32", reason="nm lists what a library needs"
)
@pytest.mark.parametrize("library", LIBRARIES, ids=lambda path: path.name)
def test_the_library_needs_nothing_that_changes(library):
    """Neither Python's functions nor PyTorch's in C++; its stable ones are in C."""
    command = ["nm", "-u", *(["-D"] if sys.platform == "linux" else []), str(library)]
    needed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert any(re.match("_?(aoti_)?torch_", name) for name in needed), needed
    changing = r"_?_?Py[A-Z]|_*Z\w*?(2at|3c10|5torch)"
    assert [name for name in needed if re.match(changing, name)] == []
