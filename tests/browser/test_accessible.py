"""A page is accessible. In a file of its own, which another worker runs beside test_pages.py."""

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.browser.conftest import KINDS, LOOKS, each_page, show


@each_page
def test_a_page_is_accessible(page, site, name, request):
    looks = LOOKS
    if not request.config.getoption("--all-chapters"):
        if name not in KINDS:
            pytest.skip("runs with --all-chapters")
        looks = [LOOKS[KINDS.index(name) % 2]]
    for width, theme in looks:
        show(page, site, name, theme, width)
        page.evaluate(
            "document.querySelectorAll('details').forEach(fold => fold.open = true)"
        )
        violations = Axe().run(page).response["violations"]
        serious = [
            (found["id"], found["nodes"][0]["html"][:200], len(found["nodes"]))
            for found in violations
            if found["impact"] in ("serious", "critical")
        ]
        assert serious == [], width
