"""Checks the links to other sites, in every file of the course, anchors in pages included.

    python -m tools.links

Not a test, since others' servers may be down. Ends with 1 if a page or an anchor is gone. What a
server refuses to a program (403, 429) or cannot say now is printed, to be opened by hand.
"""

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import unquote
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[1]
KINDS = {".md", ".ipynb", ".py", ".cpp", ".cu", ".h", ".toml", ".yml", ".json"}
GONE = "gone"
LINK = re.compile(r"https://[^\s\"'<>`\\(){}\[\]]+")


def problem(address):
    """None, or what is wrong: a sentence that begins with GONE if it is for good."""
    page, _, anchor = address.partition("#")
    try:
        request = Request(page, headers={"User-Agent": "Mozilla/5.0 (link check)"})
        with urlopen(request, timeout=30) as answer:
            if anchor and "html" in answer.headers.get("Content-Type", ""):
                text = answer.read().decode("utf-8", "replace")
                names = re.findall(
                    r"""\b(?:id|name)=["']?(?:user-content-)?([^"'\s>]+)""", text
                )
                # Line numbers, on GitHub.
                made_by_a_script = re.fullmatch(r"L\d+(-L\d+)?", anchor)
                if not made_by_a_script and unquote(anchor) not in names:
                    return f"{GONE}: the page has no #{anchor}"
    except HTTPError as error:
        return f"{GONE if error.code in (404, 410) else 'unclear'}: {error.code} {error.reason}"
    except (URLError, TimeoutError, ConnectionError) as error:
        return f"unclear: {error}"
    return None


def main():
    # No .venv.
    visible = [path for path in ROOT.iterdir() if not path.name.startswith(".")]
    places = {}
    for path in (path for top in visible for path in (top, *top.rglob("*"))):
        if path.suffix in KINDS:
            for address in LINK.findall(path.read_text(encoding="utf-8")):
                name = path.relative_to(ROOT).as_posix()
                places.setdefault(address.rstrip(".,;:*"), set()).add(name)
    with ThreadPoolExecutor(8) as threads:
        problems = dict(zip(places, threads.map(problem, places), strict=True))
    found = {address: said for address, said in problems.items() if said}
    for address, said in found.items():
        print(f"{said}\n    {address}\n    in {', '.join(sorted(places[address]))}")
    gone = sum(said.startswith(GONE) for said in found.values())
    print(f"{len(places)} links: {gone} gone, {len(found) - gone} unclear")
    return gone > 0


if __name__ == "__main__":
    sys.exit(main())
