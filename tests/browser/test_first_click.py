"""What a newcomer meets who types the README's command."""

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import FOLDERS, ROOT, jupyter


@pytest.fixture(scope="module", params=["README.md", "README.zh.md"])
def opened(request, course):
    with jupyter(course, request.param) as (_, opened):
        yield opened


@pytest.fixture
def chapter(page, opened):
    """The chapter that the command opens, when all of it is there."""
    page.set_viewport_size({"width": 1300, "height": 1000})
    page.goto(opened)
    expect(
        page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]")
    ).to_be_visible()
    expect(page.locator("#jupyterlab-splash")).to_have_count(0)
    page.wait_for_load_state("networkidle")
    return page


def test_nobody_is_asked_anything_and_nothing_changes(chapter, course):
    # the question about news comes late, and so does what the kernel says that it is
    chapter.wait_for_timeout(3_000)
    asked = chapter.locator(".Toastify__toast, .jp-Dialog").all_inner_texts()
    assert asked == [], "was ./tools/lab of requirements.txt installed?"
    assert chapter.locator(".jp-mod-dirty").count() == 0, "was ./tools/lab installed?"
    for folder in FOLDERS:
        path = f"{folder}/00_start_here.ipynb"
        assert (course / path).read_bytes() == (ROOT / path).read_bytes()


def test_a_link_leads_to_the_code(chapter):
    chapter.get_by_role("link", name="helpers/ops/softplus.py").first.click()
    editor = chapter.locator(".jp-FileEditor:visible .cm-content")
    expect(editor).to_contain_text("softplus", timeout=20_000)
