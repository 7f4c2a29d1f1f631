"""Each page by itself: it is whole and light."""

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import FRONT, KINDS, LOOKS, PAGES, each_page, look, show


@each_page
def test_a_page_is_whole(page, site, name):
    (narrow, theme), (wide, _theme) = LOOKS
    elsewhere = show(page, site, name, theme, narrow)
    look(page, PAGES.get(name))
    assert elsewhere == []
    for width in (narrow, wide):  # as when a window grows
        page.set_viewport_size({"width": width, "height": 1000})
        beyond = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert beyond <= 0, f"wider than {width}"
    sideways = """cells => cells.filter(cell => cell.scrollWidth > cell.clientWidth + 1)
        .map(cell => cell.textContent)"""
    tables = ".pst-scrollable-table-container, .bd-article table"
    at_1300 = f".cell_input pre, {tables}, .bd-article mjx-container:not([display])"
    assert page.locator(at_1300).evaluate_all(sideways) == []
    outline = page.locator(".bd-sidebar-secondary")
    assert (
        outline.evaluate_all("all => all.filter(o => o.scrollWidth > o.clientWidth)")
        == []
    )


def test_no_formula_is_cut_off(page, site):
    """What is wider than a phone goes on in the next line, or says that it scrolls."""
    cut = """formulas => formulas.filter(f => f.scrollHeight > f.clientHeight + 1
        || f.scrollWidth > f.clientWidth + 4
        && (f.querySelector("[style*='width: 1em'], [style*='width: 2em']")
            || !f.matches(".goes-on"))).length"""
    for chapter in ("02_static_functions", "13_decision_and_theorem", "20_attention"):
        show(page, site, f"notebooks/{chapter}.html", width=390)
        assert page.locator(".bd-article mjx-container").evaluate_all(cut) == 0, chapter
    wide = page.locator("mjx-container.goes-on")
    count = wide.count()
    wide.first.evaluate("formula => { formula.scrollLeft = formula.scrollWidth }")
    expect(wide).to_have_count(count - 1)


@pytest.mark.parametrize("name", KINDS)
def test_a_first_visit_is_light(page, site, name):
    loaded, complaints = {}, []
    page.on("response", lambda answer: loaded.update({answer.url: len(answer.body())}))
    page.on(
        "console", lambda said: said.type == "error" and complaints.append(said.text)
    )
    page.goto(site + name, wait_until="networkidle")
    assert complaints == []
    if name in FRONT.values():
        assert not any("/_images/" in url for url in loaded)
    assert not any("pagefind" in url for url in loaded)
    bytes_of = {url: n for url, n in loaded.items() if "/_images/" not in url}
    assert sum(bytes_of.values()) < 1_000_000, bytes_of


def test_a_picture_is_loaded_when_it_is_near(page, site):
    loaded = []
    page.on("request", lambda request: loaded.append(request.url))
    page.set_viewport_size({"width": 1300, "height": 1000})
    page.goto(f"{site}notebooks/08_c_and_cpp.html", wait_until="networkidle")
    last = page.locator(".bd-article img").last
    address = last.evaluate("picture => picture.src")
    assert address not in loaded
    last.scroll_into_view_if_needed()
    page.wait_for_function(
        "[...document.images].at(-1).naturalWidth > 0", timeout=10_000
    )
    assert address in loaded
    natural = last.evaluate("picture => picture.naturalWidth")
    assert int(last.get_attribute("width")) == natural // 2  # 200 dpi
