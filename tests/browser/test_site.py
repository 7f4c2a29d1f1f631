"""The pages, as a reader's browser shows them."""

import json
import os
import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.browser.conftest import CHAPTERS, FOLDERS, ROOT, formulas, look

PAGES = {
    path.relative_to(ROOT).with_suffix(".html").as_posix(): path
    for path in [ROOT / "README.md", ROOT / "README.zh.md", *CHAPTERS]
}
each_page = pytest.mark.parametrize("name", PAGES)
each_theme = pytest.mark.parametrize("theme", ["light", "dark"])


def show(page, site, name, theme="light", width=1300):
    """Opens a page and waits until its formulas are set; returns the requests to other hosts."""
    elsewhere = []

    def watch(request):
        if not request.url.startswith((site, "data:", "blob:")):
            elsewhere.append(request.url)

    page.on("request", watch)
    page.set_viewport_size({"width": width, "height": 1000})
    page.emulate_media(color_scheme=theme)
    page.goto(site + name)
    if formulas(PAGES[name]):
        page.wait_for_function("window.MathJax && MathJax.startup && MathJax.startup.promise")
        page.evaluate("MathJax.startup.promise")
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    return elsewhere


@each_page
@each_theme
def test_a_page_is_whole(page, site, name, theme):
    for width in (390, 1300):
        assert show(page, site, name, theme, width) == []
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"wider than {width}"
        look(page, PAGES[name])
    sideways = """cells => cells.filter(cell => cell.scrollWidth > cell.clientWidth + 1)
        .map(cell => cell.textContent)"""
    assert page.locator(".cell_input pre").evaluate_all(sideways) == []  # at 1300


@each_page
@each_theme
def test_a_page_is_accessible(page, site, name, theme, request):
    if name.startswith("zh/") and not request.config.getoption("--all-chapters"):
        pytest.skip("runs with --all-chapters")  # they look like the English ones
    show(page, site, name, theme)
    violations = Axe().run(page).response["violations"]
    serious = [
        (found["id"], found["nodes"][0]["html"][:200], len(found["nodes"]))
        for found in violations
        if found["impact"] in ("serious", "critical")
    ]
    assert serious == []


SHOWN = """selector => { const box = document.querySelector(selector)?.getBoundingClientRect();
    return !!box && box.width > 0 && box.right > 0 && box.left < innerWidth }"""


@pytest.mark.parametrize("width", [390, 1000, 1300])
@pytest.mark.parametrize("side", ["primary", "secondary"])
def test_a_sidebar_opens_and_closes(page, site, width, side):
    show(page, site, "notebooks/04_exp.html", width=width)
    button = page.locator(f"button.{side}-toggle:visible")
    if button.count() == 0:  # the outline of a wide page is there, and has no button
        assert side == "secondary" and page.evaluate(SHOWN, "#pst-secondary-sidebar")
        return
    open_at_first = page.evaluate(SHOWN, f"#pst-{side}-sidebar")
    button.click()
    selector = f"#pst-{side}-sidebar, #pst-{side}-sidebar-modal[open]"
    if open_at_first:
        page.wait_for_function(f"!({SHOWN})('#pst-{side}-sidebar')", timeout=5_000)
    else:
        page.wait_for_selector(f"#pst-{side}-sidebar-modal[open]", timeout=5_000)
        assert page.evaluate(SHOWN, selector)


@pytest.mark.parametrize("name", ["notebooks/04_exp.html", "zh/04_exp.html"])
def test_what_is_predicted_is_folded(page, site, name):
    show(page, site, name)
    cells = json.loads(PAGES[name].read_text(encoding="utf-8"))["cells"]
    folded = [c for c in cells if c["metadata"].get("jupyter", {}).get("outputs_hidden")]
    folds = page.locator("details.hide")
    assert folds.count() == len(folded) > 0
    for fold in folds.all():
        output = fold.locator(".cell_output")
        expect(output).to_be_hidden()
        fold.locator("summary").click()
        expect(output).to_be_visible()


def test_no_formula_is_cut_off(page, site):
    show(page, site, "notebooks/02_static_functions.html", width=390)
    cut = """formulas => formulas.filter(f => f.scrollHeight > f.clientHeight + 1).length"""
    assert page.locator(".bd-article mjx-container").evaluate_all(cut) == 0


@pytest.mark.parametrize("name", ["index.html", "README.zh.html", "notebooks/04_exp.html"])
def test_a_page_says_what_it_is(page, site, name):
    page.goto(site + name)
    description = page.locator("meta[name=description]").get_attribute("content")
    assert len(description) > 60
    assert page.title().count("Extending PyTorch") + page.title().count("扩展 PyTorch") == 1
    assert page.locator("link[rel=icon]").count() == 1
    other = page.locator("link[rel=alternate][hreflang]").evaluate("link => link.href")
    assert page.request.get(other).ok
    if "GITHUB_REPOSITORY" not in os.environ:
        assert page.locator("a[href*=OWNER]").count() == 0


SEARCHES = {  # a heading that must be among the first three
    "notebooks": {
        "higher-order": "Higher-order gradients",
        "gradcheck": "gradcheck by hand",
        "vmap": "A rule for vmap",
        "checkpointing": "Recompute: activation checkpointing",
        "shared memory": "a tile in shared memory",
    },
    "zh": {
        "高阶导数": "高阶梯度",
        "自定义算子": "能编译的自定义算子",
        "编译": "编译器看到什么",
        "脉冲神经元": "发放脉冲的神经元",
        "半精度": "一半的位数",
    },
}


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_search_finds_the_section_in_its_edition(page, site, folder):
    loaded = []
    page.on("request", lambda request: loaded.append(request.url))
    show(page, site, f"{folder}/04_exp.html")
    assert not any("pagefind" in url or "searchindex" in url for url in loaded)
    page.get_by_role("button", name={"notebooks": "Search", "zh": "搜索"}[folder]).first.click()
    box = page.locator("#pst-search-dialog input")
    for words, expected in SEARCHES[folder].items():
        box.fill("")
        box.press_sequentially(words)
        first = page.locator("#found a:nth-child(-n+3) b").filter(has_text=expected)
        expect(first).not_to_have_count(0, timeout=10_000)
        links = page.locator("#found a").evaluate_all("links => links.map(link => link.href)")
        assert all(("zh" in link) == (folder == "zh") for link in links), links
    box.fill("龘")
    expect(page.locator("#found")).to_have_text(re.compile("No section|没有找到"), timeout=10_000)
    box.fill("softplus")
    page.locator("#found a").first.wait_for()
    box.press("Enter")
    expect(page.locator("#pst-search-dialog")).to_be_hidden()
    assert page.evaluate("document.getElementById(decodeURI(location.hash.slice(1))) !== null")


@pytest.mark.parametrize("folder", FOLDERS)
def test_chapters_follow_each_other_and_are_downloaded_as_they_are(page, site, folder):
    page.goto(site if folder == "notebooks" else f"{site}{folder}/")
    page.wait_for_selector("a.right-next")
    assert page.locator("h1").first.inner_text().startswith("Extending PyTorch" * (folder != "zh"))
    for path in [path for path in CHAPTERS if path.parent.name == folder]:
        page.get_by_title({"notebooks": "next page", "zh": "下一章"}[folder]).click()
        page.wait_for_url(f"**/{folder}/{path.stem}.html")
        assert (
            f"jupyter lab --notebook-dir=. {folder}/{path.name}"
            in page.locator(".how-to-run").inner_text()
        )
        notebook = page.locator(".btn-download-source-button").first.evaluate("link => link.href")
        assert page.request.get(notebook).body() == path.read_bytes()
    assert page.locator("a.right-next").count() == 0


def test_the_switch_leads_to_the_same_chapter(page, site):
    for name in ("README.html", "notebooks/02_static_functions.html"):
        page.goto(site + name)
        page.get_by_role("link", name="中文", exact=True).first.click()
        assert page.url == site + name.replace("notebooks", "zh").replace("README", "README.zh")
        page.get_by_role("link", name="English", exact=True).first.click()
        assert page.url == site + name
