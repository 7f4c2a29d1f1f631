"""What chapter 16 builds is kept, built anew after a change, and fails in words."""

import pytest

from helpers.lessons.shipping import build_package, build_program
from helpers.ops.involution.compiler import BuildError
from tests.needs import needs_compiler

pytestmark = needs_compiler
RANDOM = "import os, sys; open(sys.argv[1], 'wb').write(os.urandom(9))"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))  # macOS


def test_a_package_is_kept_until_its_text_or_a_module_changes(tmp_path):
    (tmp_path / "modules").mkdir()
    first = build_package(RANDOM, tmp_path / "modules")
    written = first.read_bytes()
    assert len(written) == 9 and first.suffix == ".pt2"
    assert (
        build_package(RANDOM, tmp_path / "modules") == first
        and first.read_bytes() == written
    )
    (tmp_path / "modules" / "recurrence.py").write_text("")
    others = (
        build_package(RANDOM, tmp_path / "modules"),
        build_package(RANDOM + " ", tmp_path),
    )
    assert len({first, *others}) == 3


def test_a_build_that_fails_says_why(tmp_path):
    with pytest.raises(
        RuntimeError, match="(?s)the package was not written:.*no such operator"
    ):
        build_package("raise SystemExit('no such operator')", tmp_path)
    with pytest.raises(BuildError, match="error"):
        build_program("int main() { return nothing; }")
