"""Puts MathJax beside the pages, so that no page asks another host for it.

    python site/mathjax.py

It needs npm. What arrives is compared with the digest below.
"""

import hashlib
import io
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

VERSION = "3.2.2"
DIGEST = (  # SHA-512
    "06df9249553c7811b6ef30a155ec0e89c62ced7b1db78d2a9b8f94a47c97ee4d"
    "3f3bd36588f73ec7bee4d7f144b0fb2328f64626fb5164cd6f3be81e5b43a11b"
)
TARGET = Path(__file__).parent / "static" / "mathjax"
WANTED = tuple(  # without the menu, which is a third of tex-chtml.js
    f"package/es5/{name}"
    for name in (
        "startup.js",
        "core.js",
        "input/tex-base.js",
        "input/tex/extensions/ams.js",
        "output/chtml.js",
        "output/chtml/fonts/",
        "a11y/assistive-mml.js",
    )
)


def main():
    if not shutil.which("npm"):
        raise SystemExit("npm is missing, which brings MathJax: install Node.js")
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", f"mathjax@{VERSION}"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        (archive,) = Path(folder).glob("*.tgz")
        packed = archive.read_bytes()
    found = hashlib.sha512(packed).hexdigest()
    if found != DIGEST:
        raise SystemExit(f"mathjax {VERSION} has the digest {found}, not {DIGEST}")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            if member.isfile() and member.name.startswith(WANTED):
                place = TARGET / member.name.removeprefix("package/es5/")
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(archive.extractfile(member).read())


if __name__ == "__main__":
    main()
