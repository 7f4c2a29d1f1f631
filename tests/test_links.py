"""`tools.links`, on pages of a server of our own."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tools import links


class Pages(BaseHTTPRequestHandler):
    def do_GET(self):  # noqa: N802
        status = int(self.path.strip("/"))
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write('<h1 id="début"><a name=user-content-end>'.encode())

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def site():
    with HTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("200", None),
        ("200#d%C3%A9but", None),
        ("200#end", None),
        ("200#L12-L20", None),
        ("200#middle", "gone: the page has no #middle"),
        ("404", "gone: 404 Not Found"),
        ("410#end", "gone: 410 Gone"),
        ("503", "unclear: 503 Service Unavailable"),
    ],
)
def test_what_is_gone_is_told_from_what_is_unclear(site, page, said):
    assert links.problem(f"{site}/{page}") == said


def test_a_server_that_does_not_answer_is_unclear():
    assert links.problem("http://127.0.0.1:9/").startswith("unclear: ")


def test_links_are_found_without_the_sentence_around_them():
    text = "([a](https://x.org/a#b), https://x.org/c.html.) `https://x.org/d` <https://x.org/e>"
    found = [address.rstrip(".,") for address in links.LINK.findall(text)]
    assert found == [f"https://x.org/{end}" for end in ("a#b", "c.html", "d", "e")]


def test_the_command_says_what_is_gone_and_where(monkeypatch, capsys):
    monkeypatch.setattr(
        links, "problem", lambda address: "gone: 404" if "2103.0" in address else ""
    )
    assert links.main()
    said = capsys.readouterr().out
    assert "gone: 404\n    https://arxiv.org/abs/2103.06255\n    in " in said
    assert said.splitlines()[-1].endswith(" links: 1 gone, 0 unclear")
    monkeypatch.setattr(
        links, "problem", lambda address: "unclear: 403" * address.endswith("35")
    )
    assert not links.main()
