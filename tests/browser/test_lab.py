"""JupyterLab shows the chapters, runs them, and turns an exercise green."""

import contextlib
import json
import re

import pytest
from playwright.sync_api import TimeoutError, expect

from tests.browser.conftest import CHAPTERS, FOLDERS, PATIENCE, ROOT, look

EACH_PUSH = "notebooks/02_static_functions", "zh/00_start_here"
CONTRAST = """element => {
    const light = colour => {
        const [r, g, b] = colour.match(/[\\d.]+/g).map(x => x / 255)
            .map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
    };
    let behind = element;
    while (getComputedStyle(behind).backgroundColor === 'rgba(0, 0, 0, 0)')
        behind = behind.parentElement;
    const pair = [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor];
    const [low, high] = pair.map(light).sort((a, b) => a - b);
    return high / low;
}"""
STDERR = (
    "[data-mime-type='application/vnd.jupyter.stderr']"  # errors are shown as this, too
)
PROMPTS = "[...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].map(p => p.textContent)"
HAS_RUN = f"""document.querySelector("{STDERR}, .jp-Dialog")
    || {PROMPTS}.every(prompt => !prompt || /\\d/.test(prompt))"""  # none, of a folded cell
WIDE = """cells => cells.filter(cell => [...cell.querySelectorAll(
        '.cm-scroller, .jp-OutputArea-output, .jp-MarkdownOutput')]
    .some(part => part.clientWidth > 50 && part.scrollWidth > part.clientWidth + 2))
    .map(cell => cell.textContent.slice(0, 80))"""


def named(path):
    return path.relative_to(ROOT).with_suffix("").as_posix()


@pytest.fixture(autouse=True)
def window(page, lab):
    page.set_viewport_size({"width": 1300, "height": 1000})
    yield
    api = lab.replace(
        "/lab", "/api/sessions"
    )  # or its kernel lives on, with what it knows
    tokens = [c["value"] for c in page.context.cookies() if c["name"] == "_xsrf"]
    for session in page.request.get(api).json():
        page.request.delete(
            f"{api}/{session['id']}", headers={"X-XSRFToken": tokens[0]}
        )


def command(page, name, effect):
    """Runs a command from the palette, by the keyboard alone, until its effect is seen."""
    active = page.locator(".lm-CommandPalette-item.lm-mod-active")
    found = active.filter(has_text=re.compile(f"^{name}"))  # not "Restart Kernel and …"
    for _ in range(
        10
    ):  # a notebook that comes up late takes the focus from the palette
        page.keyboard.press("Control+Shift+C")
        page.keyboard.insert_text(name)
        with contextlib.suppress(TimeoutError):
            found.wait_for(timeout=5_000)
            page.keyboard.press("Enter")
            page.wait_for_function(effect, timeout=10_000)
            return
        page.keyboard.press("Escape")
    pytest.fail(f"{name} has no effect")


def open_chapter(page, lab, path):
    """Opens a chapter by its address, and clears its stored outputs."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    page.goto(f"{lab}/tree/{named(path)}.ipynb?reset")
    expect(page.locator(".jp-Notebook .jp-Cell")).to_have_count(len(cells))
    expect(
        page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]")
    ).to_be_visible()
    expect(page.locator("#jupyterlab-splash")).to_have_count(0)
    page.wait_for_load_state("networkidle")
    command(
        page,
        "Clear Outputs of All Cells",
        "!document.querySelector('.jp-OutputArea-output')",
    )
    return cells


@pytest.mark.parametrize("path", CHAPTERS, ids=named)
def test_a_chapter_runs(page, lab, path, request):
    if not request.config.getoption("--all-chapters") and named(path) not in EACH_PUSH:
        pytest.skip("runs with --all-chapters")
    cells = open_chapter(page, lab, path)
    command(page, "Run All Cells", f"{PROMPTS}.some(prompt => /[*\\d]/.test(prompt))")
    page.wait_for_function(HAS_RUN, timeout=5 * PATIENCE)
    assert page.locator(STDERR).all_inner_texts() == []
    assert page.locator(".jp-Dialog").all_inner_texts() == []
    look(page, path)
    stored = [
        kind for c in cells for o in c.get("outputs", []) for kind in o.get("data", {})
    ]
    for kind in ("image/png", "text/html"):  # figures; verdicts and reports
        assert page.locator(f"[data-mime-type='{kind}']").count() == stored.count(kind)
    assert page.locator(".jp-Cell").evaluate_all(WIDE) == []


LINKED = re.compile(r"\]\((\d\d_\w+\.ipynb)#cell-id=([\w-]+)\)")  # in a cell's source
DEEPEST = ("11", "13", "09", "14", "15")  # the longest chapters
ABOVE = """heading => {
    const scroller = heading.closest(".jp-WindowedPanel-outer").getBoundingClientRect();
    return heading.getBoundingClientRect().top - scroller.top;
}"""


@pytest.mark.parametrize("chapter", DEEPEST)
def test_a_link_to_a_cell_lands(page, lab, chapter):
    """Cold: when the other chapter is not open, and what is above comes in late."""
    index = (ROOT / "notebooks/19_which_way.ipynb").read_text("utf-8")
    name, last = [link for link in LINKED.findall(index) if link[0][:2] == chapter][-1]
    cells = json.loads((ROOT / "notebooks" / name).read_text("utf-8"))["cells"]
    (source,) = ("".join(c["source"]) for c in cells if c["id"] == last)
    words = re.sub("[#`*$]", "", source.splitlines()[0]).strip()
    page.goto(f"{lab}/tree/notebooks/19_which_way.ipynb?reset")
    page.locator(f"a[href*='{name}'][href$='#cell-id={last}']").first.click()
    page.get_by_role("tab", name=name).wait_for()
    shown = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)").get_by_role(
        "heading", name=words
    )
    expect(shown.first).to_be_in_viewport(timeout=60_000)
    page.wait_for_timeout(3_000)  # for what comes in late
    assert 0 <= shown.first.evaluate(ABOVE) < 60


@pytest.mark.parametrize("folder", FOLDERS)
def test_an_outcome_and_what_follows_are_revealed_by_clicks(page, lab, folder):
    path = ROOT / folder / "05_higher_order.ipynb"
    cells = json.loads(path.read_text("utf-8"))["cells"]
    place = next(n for n, c in enumerate(cells) if c["metadata"].get("jupyter"))
    page.goto(f"{lab}/tree/{named(path)}.ipynb?reset")
    cell, following = (page.locator(".jp-Cell").nth(place + n) for n in (0, 1))
    outcome, why = cell.locator(".jp-OutputArea-output"), following.locator("details p")
    expect(cell.locator(".jp-Placeholder")).to_be_visible()
    for hidden in (outcome.first, why.first):
        expect(hidden).to_be_hidden()
    cell.locator(".jp-Placeholder").click()
    expect(outcome.first).to_contain_text("[4.0, 2.0]")
    following.locator("summary").click()
    expect(why.first).to_be_visible()


TRIPLE = """class Triple(Function):
    @staticmethod
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    def backward(ctx, grad_output):
        return {}


exercise("0.1").check(Triple)"""


def type_cell(page, source):
    """Replaces what the active cell holds, by the keyboard, and runs it."""
    page.keyboard.press("Enter")
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(source)
    page.keyboard.press("Control+Enter")


def use_theme(page, theme):
    name = f"JupyterLab {theme}"
    effect = f"document.body.dataset.jpThemeName === '{name}'"
    command(page, f"Use Theme: {name}", effect)


def test_an_exercise_is_solved_with_the_keyboard_alone(page, lab):
    open_chapter(page, lab, CHAPTERS[0])
    page.keyboard.press("Escape")
    active = page.locator(".jp-Cell.jp-mod-active")
    page.keyboard.press("Shift+Enter")  # the title
    page.keyboard.press("Shift+Enter")  # the heading of the first section
    page.keyboard.press("Shift+Enter")  # the imports
    for _ in range(60):
        if 'exercise("0.1").check(Triple)' in active.inner_text():
            break
        page.keyboard.press("ArrowDown")
    for answer, mark, words in [
        ("grad_output", "✗", "right, but multiplied by"),
        ("3 * grad_output", "✓", "0.1 Triple"),
    ]:
        type_cell(page, TRIPLE.format(answer))
        verdict = active.locator(".jp-OutputArea-output")
        expect(verdict).to_contain_text(words)
        shown = verdict.locator("b").first
        expect(shown).to_have_text(mark)
        colour = {"✗": "rgb(179, 79, 0)", "✓": "rgb(0, 122, 89)"}[mark]
        expect(shown).to_have_css("background-color", colour)
        for theme in ("Dark", "Light"):
            use_theme(page, theme)
            assert shown.evaluate(CONTRAST) >= 4.5
            for text in verdict.locator("div > code, div > b").all():
                assert text.evaluate(CONTRAST) >= 4.5
        page.keyboard.press("Escape")
    for call, words in [("hint()", "Hint 1 of"), ("solution()", "class Triple")]:
        page.keyboard.press("b")  # a new cell below
        type_cell(page, f'exercise("0.1").{call}')
        expect(active.locator(".jp-OutputArea-output")).to_contain_text(words)
