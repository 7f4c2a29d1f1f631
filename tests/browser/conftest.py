"""What the tests in a browser need: Chromium, the pages, JupyterLab on a copy of the course.

pip install -r requirements.txt -r site/requirements.txt -r tests/browser/requirements.txt
pytest tests/browser [--all-chapters]
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import expect

ROOT = Path(__file__).parents[2]
FOLDERS = ("notebooks", "zh")
CHAPTERS = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.ipynb"))]
PATIENCE = 120_000  # ms; a busy machine is slow, not broken
SETTINGS = {  # all cells are in the page, also those that are not in view; nobody asks about news
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false"},
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
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    text = re.sub(r"(?s:```.*?```)|`[^`\n]*`", "", text)
    return len(re.findall(r"(?s:\$\$.+?\$\$)|\$[^$\n]+\$", text))


def look(page, path):
    """All formulas are set, and no picture is broken."""
    assert page.locator("mjx-container").count() == formulas(path)
    wrong = (
        "mjx-merror, [data-mjx-error], mjx-container [style*='color: red']"  # red: unknown macro
    )
    assert page.locator(wrong).all_inner_texts() == []
    broken = "[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
    assert page.evaluate(broken) == []


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The address of the pages, built from this checkout."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm, which brings MathJax: install Node.js")
    out = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "site/mathjax.py"], cwd=ROOT, check=True)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-c", "site", "."]
    subprocess.run([*command, out], cwd=ROOT, check=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=out)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """The address of a JupyterLab that runs in a copy of the course."""
    home = tmp_path_factory.mktemp("lab")
    copy = home / "course"
    left_out = shutil.ignore_patterns(".git", ".venv", "_site", "jupyter_execute", "mathjax")
    shutil.copytree(ROOT, copy, ignore=left_out)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}"]
    command += ["--IdentityProvider.token=", "--LabApp.news_url=None", f"--notebook-dir={copy}"]
    for name, values in SETTINGS.items():
        place = home / "settings" / f"{name}.jupyterlab-settings"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(values))
    environment = {"JUPYTERLAB_SETTINGS_DIR": str(home / "settings"), "PYTHONPATH": str(copy)}
    environment |= {"JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces")}
    with open(home / "log", "w") as log:
        server = subprocess.Popen(
            command, cwd=copy, env=os.environ | environment, stdout=log, stderr=log
        )
    address = f"http://127.0.0.1:{port}/lab"
    for _ in range(PATIENCE // 500):
        try:
            urllib.request.urlopen(address, timeout=5).close()
            break
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.5)
    else:
        pytest.fail(f"JupyterLab does not answer:\n{(home / 'log').read_text()}")
    yield address
    server.terminate()
    server.wait()
