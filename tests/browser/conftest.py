"""What the tests in a browser need: Chromium, the pages, JupyterLab on a copy of the course.

pip install -r requirements.txt -r site/requirements.txt -r tests/browser/requirements.txt
pytest tests/browser [--all-chapters]
"""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from filelock import FileLock  # torch brings it
from playwright.sync_api import expect

ROOT = Path(__file__).parents[2]
FOLDERS = ("notebooks", "zh")
CHAPTERS = [
    path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.ipynb"))
]
FRONT = {"notebooks": "index.html", "zh": "index.zh.html"}
PAGES = {
    path.relative_to(ROOT).with_suffix(".html").as_posix(): path
    for path in [ROOT / "README.md", ROOT / "README.zh.md", *CHAPTERS]
}
KINDS = [  # of pages
    *FRONT.values(),
    "README.html",
    "notebooks/11_when_gradients_lie.html",
    "notebooks/19_which_way.html",
    "zh/04_exp.html",
]
each_page = pytest.mark.parametrize("name", [*FRONT.values(), *PAGES])
LOOKS = (390, "dark"), (1300, "light")  # widths and themes
PATIENCE = 120_000  # ms; a busy machine is slow, not broken
BROKEN = """async () => {
    const pictures = [...document.images];
    for (const picture of pictures) picture.loading = "eager";
    await Promise.allSettled(pictures.map(picture => picture.decode()));
    return pictures.filter(picture => !picture.naturalWidth).map(picture => picture.src);
}"""
SETTINGS = {  # all cells are in the page, also those that are not in view
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
}


def pytest_addoption(parser):
    what = "run each chapter in JupyterLab, and look at the accessibility of each page"
    parser.addoption("--all-chapters", action="store_true", help=what)


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args):
    """The system's Chromium, where there is one; else that of `playwright install chromium`."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    return browser_type_launch_args | ({"executable_path": found} if found else {})


@pytest.fixture(autouse=True)
def patience(page):
    page.set_default_timeout(PATIENCE)
    expect.set_options(timeout=PATIENCE)


def formulas(path):
    """How many formulas there are in a notebook, or in a file of Markdown."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = [
            cell
            for cell in json.loads(text)["cells"]
            if cell["cell_type"] == "markdown"
        ]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    text = re.sub(r"(?s:```.*?```)|`[^`\n]*`", "", text)
    return len(re.findall(r"(?s:\$\$.+?\$\$)|\$[^$\n]+\$", text))


def look(page, path):
    """All formulas are set, and no picture is broken; `path`: what the page was made of, if any."""
    assert page.locator("mjx-container").count() == (formulas(path) if path else 0)
    wrong = "mjx-merror, [data-mjx-error], mjx-container [style*='color: red']"  # red: unknown
    assert page.locator(wrong).all_inner_texts() == []
    assert page.evaluate(BROKEN) == []


def show(page, site, name, theme="light", width=1300):
    """Opens a page; returns the requests to other hosts."""
    elsewhere = []

    def watch(request):
        if not request.url.startswith((site, "data:", "blob:")):
            elsewhere.append(request.url)

    page.on("request", watch)
    page.set_viewport_size({"width": width, "height": 1000})
    # no colour is caught on its way to another
    page.emulate_media(color_scheme=theme, reduced_motion="reduce")
    page.goto(site + name)
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    return elsewhere


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="session")
def site(tmp_path_factory, worker_id):
    """The address of the pages, built from this checkout once for all workers."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm, which makes the pages: install Node.js")
    folder = tmp_path_factory.getbasetemp()
    out = (folder if worker_id == "master" else folder.parent) / "site"
    with FileLock(f"{out}.lock"):
        if not (out / "built").exists():
            build(out)
            (out / "built").touch()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=out)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def build(out):
    subprocess.run(["npm", "ci", "--prefix", "site"], cwd=ROOT, check=True)
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-j",
        "auto",
        "-W",
        "--keep-going",
        "-n",
        "-q",
        "-c",
        "site",
        ".",
    ]
    subprocess.run([*command, out], cwd=ROOT, check=True)


def readme_command(name):
    """What a README tells a newcomer to type, after the installation."""
    text = (ROOT / name).read_text(encoding="utf-8")
    command, on_windows = re.findall(r"&& (python -m helpers.lessons.mine.*)", text)
    assert command == on_windows
    return command


@pytest.fixture(scope="session")
def course(tmp_path_factory):
    """A copy of the course, in which JupyterLab may write."""
    copy = tmp_path_factory.mktemp("lab") / "course"
    left_out = shutil.ignore_patterns(
        ".git", ".venv", "_site", "jupyter_execute", "node_modules"
    )
    return shutil.copytree(ROOT, copy, ignore=left_out)


@contextlib.contextmanager
def jupyter(course, readme):
    """Runs the README's command word for word; yields JupyterLab's address and what is opened."""
    home = Path(tempfile.mkdtemp(dir=course.parent))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}/lab"
    for name, values in SETTINGS.items():
        place = home / "settings" / f"{name}.jupyterlab-settings"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(values))
    config = {
        "ServerApp": {"open_browser": False, "allow_root": True, "port": port},
        "IdentityProvider": {"token": ""},
    }
    (home / "jupyter_server_config.json").write_text(json.dumps(config))
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(course),
        "JUPYTER_CONFIG_DIR": str(home),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
    }
    with open(home / "log", "w") as log:
        command = readme_command(readme).replace("&& ", "&& exec ")
        server = subprocess.Popen(
            command, shell=True, cwd=course, env=environment, stdout=log, stderr=log
        )
    try:
        for _ in range(PATIENCE // 500):
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                urllib.request.urlopen(address, timeout=5).close()
                break
            time.sleep(0.5)
        else:
            pytest.fail(f"JupyterLab does not answer:\n{(home / 'log').read_text()}")
        (opened,) = home.glob("runtime/jpserver-file-to-run-*-open.html")
        yield address, opened.as_uri()
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(scope="session")
def lab(course):
    """The address of a JupyterLab that runs in a copy of the course."""
    with jupyter(course, "README.md") as (address, _):
        yield address
