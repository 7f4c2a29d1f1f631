"""The pages, as a reader's browser shows them."""

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.browser.markdown import formulas

ROOT = Path(__file__).parents[2]
FOLDERS = [folder for folder in ("notebooks", "zh") if list((ROOT / folder).glob("*.ipynb"))]
CHAPTERS = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.ipynb"))]
READMES = [ROOT / name for name in ("README.md", "README.zh.md") if (ROOT / name).exists()]
PAGES = {
    path.relative_to(ROOT).with_suffix(".html").as_posix(): path for path in READMES + CHAPTERS
}
WIDTHS, THEMES = (390, 1300), ("light", "dark")

each_page = pytest.mark.parametrize("name", PAGES)


def show(page, site, name, theme="light", width=1300):
    """Opens a page and waits until its formulas are set; returns the requests to other hosts."""
    elsewhere = []

    def watch(request):
        if not request.url.startswith((site, "data:", "blob:")):
            elsewhere.append(request.url)

    page.on("request", watch)
    page.set_viewport_size({"width": width, "height": 1000})
    page.add_init_script(f"localStorage.setItem('mode', '{theme}')")
    page.add_init_script(f"localStorage.setItem('theme', '{theme}')")
    page.goto(site + name)
    if formulas(PAGES[name]):
        page.wait_for_function("window.MathJax && MathJax.startup && MathJax.startup.promise")
        page.evaluate("MathJax.startup.promise")
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    return elsewhere


@each_page
@pytest.mark.parametrize("theme", THEMES)
def test_a_page_is_whole(page, site, name, theme):
    for width in WIDTHS:
        assert show(page, site, name, theme, width) == []
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"wider than {width}"
        assert page.locator("mjx-container").count() == formulas(PAGES[name])
        assert page.locator("mjx-merror").count() == 0
        broken = "[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
        assert page.evaluate(broken) == []
        if width == 1300:
            sideways = ".cell_input pre"
            scroll = f"""[...document.querySelectorAll('{sideways}')]
                .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)"""
            assert page.evaluate(scroll) == []


@each_page
@pytest.mark.parametrize("theme", THEMES)
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


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_notebook_is_downloaded_as_it_is(page, site, path):
    name = path.relative_to(ROOT).with_suffix("").as_posix()
    show(page, site, f"{name}.html")
    address = page.locator(".btn-download-source-button").first.get_attribute("href")
    answer = page.request.get(site + name.rsplit("/", 1)[0] + "/" + address)
    assert answer.body() == path.read_bytes()


def test_the_search_finds_softplus(page, site):
    page.goto(f"{site}search.html?q=softplus")
    page.wait_for_selector("#search-results li a")
    found = " ".join(page.locator("#search-results li a").all_inner_texts())
    assert "00 Start here" in found


@pytest.mark.parametrize("folder", FOLDERS)
def test_chapters_follow_each_other_after_the_readme(page, site, folder):
    page.goto(site if folder == "notebooks" else f"{site}{folder}/")
    page.wait_for_selector("a.right-next")
    assert page.locator("h1").first.inner_text().startswith("Extending PyTorch" * (folder != "zh"))
    for path in [path for path in CHAPTERS if path.parent.name == folder]:
        page.locator("a.right-next").click()
        page.wait_for_url(f"**/{folder}/{path.stem}.html")
        assert f"jupyter lab {folder}/{path.name}" in page.locator(".how-to-run").inner_text()
    assert page.locator("a.right-next").count() == 0


@pytest.mark.skipif("zh" not in FOLDERS, reason="there is no Chinese edition")
def test_the_switch_leads_to_the_same_chapter(page, site):
    for name in ("README.html", "notebooks/02_static_functions.html"):
        page.goto(site + name)
        page.get_by_role("link", name="中文", exact=True).first.click()
        assert page.url == site + name.replace("notebooks", "zh").replace("README", "README.zh")
        page.get_by_role("link", name="English", exact=True).first.click()
        assert page.url == site + name
