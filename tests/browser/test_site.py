"""What the pages do when a reader clicks and types."""

import json
import os
import re
import sys
from html import unescape
from itertools import zip_longest
from urllib.parse import unquote

import pytest
import torch
from playwright.sync_api import expect

from helpers.doctor import examine
from helpers.lessons.exercise import exercises
from helpers.lessons.judge.source import made_of
from helpers.lessons.language import VARIABLE
from tests.browser.conftest import CHAPTERS, FOLDERS, FRONT, PAGES, ROOT, show

sys.path.insert(0, str(ROOT / "site"))
from search import WORDS, plain  # noqa: E402

each_front = pytest.mark.parametrize("folder, name", FRONT.items())
SHOWN = """selector => { const box = document.querySelector(selector)?.getBoundingClientRect();
    return !!box && box.width > 0 && box.right > 0 && box.left < innerWidth }"""
BUTTONS = {  # what is there after a press: a condition in the page
    "primary-toggle": "document.querySelector('#pst-primary-sidebar-modal').open"
    f" || !({SHOWN})('#pst-primary-sidebar')",  # on a wide page it is there, and goes
    "secondary-toggle": "document.querySelector('#pst-secondary-sidebar-modal').open",
    "search-button__button": "document.querySelector('#pst-search-dialog').open",
    "theme-switch-button": "document.querySelector('.theme-change-button').checkVisibility()",
    "copybtn": "document.querySelector('.copybtn.success') !== null",
}


@pytest.mark.parametrize("width", [390, 1000, 1300])
def test_every_button_does_what_it_shows(page, site, width):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    name = "notebooks/04_exp.html"
    show(page, site, name, width=width)
    buttons = page.locator(
        "button:not(form.predict button, form.attempt button):visible"
    )
    count = buttons.count()
    pressed = []
    for place in range(count):
        button = buttons.nth(place)
        classes = button.get_attribute("class").split()
        kind = next((kind for kind in BUTTONS if kind in classes), None)
        assert kind, (
            f"no test knows what this does: {button.evaluate('b => b.outerHTML')}"
        )
        if kind not in pressed:  # one of the many that copy
            pressed.append(kind)
            button.click()
            page.wait_for_function(BUTTONS[kind], timeout=5_000)
            show(page, site, name, width=width)
    assert {"primary-toggle", "search-button__button", "theme-switch-button"} < {
        *pressed
    }
    assert (
        page.evaluate(SHOWN, "#pst-secondary-sidebar") or "secondary-toggle" in pressed
    )


def test_copying_takes_the_code_and_the_theme_changes(page, site):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    show(page, site, "notebooks/04_exp.html")
    cell = page.locator(".cell_input:visible").first
    cell.hover()
    cell.locator(".copybtn").click()
    page.wait_for_selector(".copybtn.success")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.strip() == cell.locator("pre").inner_text().strip()
    assert page.locator(".cell_output .copybtn").count() == 0
    page.locator(".theme-switch-button").click()
    page.locator(".theme-change-button[data-mode=dark]").click()
    page.wait_for_function("document.documentElement.dataset.theme === 'dark'")


@pytest.mark.parametrize("name", ["notebooks/04_exp.html", "zh/04_exp.html"])
def test_what_is_predicted_is_folded(page, site, name):
    show(page, site, name)
    cells = json.loads(PAGES[name].read_text(encoding="utf-8"))["cells"]
    folded = [
        c for c in cells if c["metadata"].get("jupyter", {}).get("outputs_hidden")
    ]
    folds = page.locator("details.hide.below-input")
    assert (
        page.locator("summary[aria-label]").count() == 0
    )  # it would be read out instead
    assert folds.count() == len(folded) > 0
    for fold in folds.all():
        output = fold.locator(".cell_output")
        expect(output).to_be_hidden()
        fold.locator("summary").click()
        expect(output).to_be_visible()


@pytest.mark.parametrize(
    "name", [*FRONT.values(), "README.zh.html", "notebooks/04_exp.html"]
)
def test_a_page_says_what_it_is(page, site, name):
    page.goto(site + name)
    description = page.locator("meta[name=description]").get_attribute("content")
    assert len(description) > 40
    assert (
        page.title().count("Extending PyTorch") + page.title().count("扩展 PyTorch")
        == 1
    )
    assert page.locator("link[rel=icon]").count() == 1
    other = page.locator("link[rel=alternate][hreflang]").evaluate("link => link.href")
    assert page.request.get(other).ok
    if "GITHUB_REPOSITORY" not in os.environ:
        assert page.locator("a[href*=OWNER]").count() == 0


MESSAGE = (  # as it is pasted; no section holds all of it
    "one of the variables needed for gradient computation has been modified by an inplace "
    "operation: [torch.FloatTensor [5]], which is output 0 of ExpBackward0"
)
SEARCHES = {  # a heading that must be among the first three
    "notebooks": {
        "higher-order": "Higher-order gradients",
        "gradcheck": "Where gradcheck misleads",
        "vmap": "A rule for vmap",
        "activation checkpointing": "Recompute: activation checkpointing",
        "shared memory": "shared memory, banks and __syncthreads",
        "view modified inplace": "is a view and is being modified inplace",  # a row of 19's index
        "double backward": "Higher-order gradients",
        "quantization": "Straight-through: a gradient",
        "element 0 of tensors does not require grad": "element 0 of tensors",
        "straight-through estimator": "Straight-through: a gradient",  # one word is nowhere
        "straight through estimator sign": "Straight-through: a gradient",  # all: in the README
        "my gradient is None": "its gradient is None",
        "install": "Install and read",
        "custom loss function": "A custom loss function: label smoothing",
        "write a tensor subclass": "A matrix that is never made",  # a task
        "write cuda kernel python": "The involution operator in CUDA",
        "straight through estimator for rounding": "Straight-through: a gradient",
        "gradient through fixed point solver": "Implicit differentiation",
        "all-gather backward": "Pairs: each collective",  # "all" alone says nothing
        "GAN generator discriminator graph": "Trying to backward",  # words that none has
        "graph break custom autograd function": "what a graph break costs",
        MESSAGE: "one of the variables needed for gradient computation",
    },
    "zh": {
        "高阶导数": "高阶梯度",
        "检查梯度": "手写 gradcheck",  # a task of chapter 19 leads there
        "梯度检查": "手写 gradcheck",
        "内存泄漏": "内存泄漏",
        "自定义算子": "能编译的自定义算子",
        "编译": "为什么要编译",
        "脉冲神经元": "脉冲的替代梯度",
        "并行": "列并行与行并行",
        "梯度裁剪": "在网络内部裁剪梯度",  # the same words, in another order
        "共享权重": "绑定的权重与冻结的权重",
        "混合精度训练": "自动混合精度",
        "显存不足": "以时间换内存",
        "安装": "安装，开始阅读",
        "没有二阶导数": "没有二阶导数",
        "第二次反向传播报错": "Trying to backward",  # words that none has
        "逐样本梯度": "vmap(grad(loss))",
        "在网络里调用 numpy": "custom_op 与 register_fake",
        MESSAGE: "one of the variables needed for gradient computation",
    },
}


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_search_finds_the_section_in_its_edition(page, site, folder):
    loaded = []
    page.on("request", lambda request: loaded.append(request.url))
    show(page, site, f"{folder}/04_exp.html")
    assert not any("pagefind" in url or "searchindex" in url for url in loaded)
    page.get_by_role(
        "button", name={"notebooks": "Search", "zh": "搜索"}[folder]
    ).first.click()
    box = page.locator("#pst-search-dialog input")
    covered = """box => box.form.querySelector(".fa-magnifying-glass").getBoundingClientRect().right
        - box.getBoundingClientRect().left - parseFloat(getComputedStyle(box).paddingLeft)"""
    assert box.evaluate(covered) <= 0  # px of the first letter
    found = page.locator("#found")
    for nobodys in ("龘", "asdfgh", "checkpiont"):
        box.fill(nobodys)
        expect(found).to_have_attribute("aria-busy", "false", timeout=10_000)
        expect(found).to_have_text(re.compile("No section|没有找到"))
    for words, expected in SEARCHES[folder].items():
        box.fill("")
        if words == MESSAGE:  # one letter after the other
            box.press_sequentially(words[:30])
        box.fill(words)
        expect(found).to_have_attribute("aria-busy", "false", timeout=10_000)
        first = page.locator("#found a:nth-child(-n+3) b").filter(has_text=expected)
        expect(first).not_to_have_count(0)
        links = page.locator("#found a").evaluate_all(
            "links => links.map(link => link.href)"
        )
        assert all(("zh" in link) == (folder == "zh") for link in links), links
    typed = """box => { box.value = "softplus"; box.dispatchEvent(new Event("input"));
        return document.getElementById("found").ariaBusy; }"""
    assert box.evaluate(typed) == "true"  # no link is taken for one of the new words
    expect(found).to_have_attribute("aria-busy", "false", timeout=10_000)
    for link in page.locator("#found a").all():
        heading, _, excerpt = (
            link.locator(tag).inner_text() for tag in ("b", "i", "span")
        )
        assert not excerpt.startswith(heading[:20]), excerpt
    box.press("ArrowDown")
    expect(page.locator("#found a").first).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(box).to_be_focused()
    box.press("Enter")
    expect(page.locator("#pst-search-dialog")).to_be_hidden()
    assert page.evaluate(
        "document.getElementById(decodeURI(location.hash.slice(1))) !== null"
    )


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_first_mention_of_a_name_leads_to_pytorch(page, site, folder):
    page.goto(f"{site}{folder}/09_custom_operators.html")
    links = page.locator(
        "a:has(> code)", has_text=re.compile(r"^torch\.library\.opcheck$")
    )
    expect(links).to_have_count(1)
    expect(links).to_have_attribute(
        "href", re.compile(r"/library\.html#torch\.library\.opcheck$")
    )


@pytest.mark.parametrize("folder", FOLDERS)
def test_chapters_follow_each_other_and_are_downloaded_as_they_are(page, site, folder):
    page.goto(site if folder == "notebooks" else f"{site}{folder}/")
    page.locator("a.start").click()
    chapters = [path for path in CHAPTERS if path.parent.name == folder]
    page.wait_for_url(f"**/{folder}/{chapters[0].stem}.html")
    for path, following in zip_longest(chapters, chapters[1:]):
        text = page.request.get(f"{site}{folder}/{path.stem}.html").text()
        assert f"jupyter lab --notebook-dir=. mine/{path.name}" in text
        sources = re.findall(r'href="\.\./(_sources/[^"]+\.ipynb)"', text)
        assert len(sources) == 1, "in the bar"
        for source in sources:
            assert page.request.get(site + source).body() == path.read_bytes()
        if following:  # at the end, too
            assert text.count(f'href="{following.stem}.html"') > 1


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_field_above_an_index_looks_it_up(page, site, folder):
    page.goto(f"{site}{folder}/19_which_way.html")
    fields = page.locator(".look-up input")
    expect(fields).to_have_count(2)
    fields.last.fill(MESSAGE)
    expect(page.locator(".look-up li:visible").first).to_contain_text("one of the var")
    fields.last.press("Enter")  # the row's own chapter
    page.wait_for_url(f"{site}{folder}/04_exp.html#*")


def test_the_contents_follow_the_reader(page, site):
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(f"{site}notebooks/11_when_gradients_lie.html")
    links = page.locator(".page-toc a")
    for at in 0.3, 0.9, 0.5:
        page.evaluate("at => scrollTo(0, at * document.body.scrollHeight)", at)
        here = page.locator(".page-toc a[aria-current=true]")
        expect(here).to_have_count(1)
        expect(here).to_be_in_viewport()
    assert links.first.get_attribute("aria-current") is None


def test_a_file_of_python_is_a_page_to_read(page, site):
    page.goto(f"{site}_static/course/helpers/ops/softplus.py.html")
    expect(page.locator("pre")).to_contain_text("dL/dy · s(x)")
    page.locator("header a", has_text="05").click()  # a chapter that uses it
    page.wait_for_url(f"{site}notebooks/05_higher_order.html")


def test_the_switch_leads_to_the_same_page(page, site):
    for name, other in {
        "index.html": "index.zh.html",
        "README.html": "README.zh.html",
        "notebooks/02_static_functions.html": "zh/02_static_functions.html",
    }.items():
        page.goto(site + name)
        page.get_by_role("link", name="中文", exact=True).first.click()
        assert page.url == site + other
        page.get_by_role("link", name="English", exact=True).first.click()
        assert page.url == site + name


@each_front
def test_the_front_page_leads_somewhere(page, site, folder, name):
    page.goto(site + name)
    assert page.locator(".ways a:not(.copied a)").count() == 6
    names = page.locator(".copied a").all_inner_texts()
    assert len(names) == len(set(names)) > 12
    sections = page.locator(".kernels a").evaluate_all("all => all.map(a => a.hash)")
    assert len(sections) == len(set(sections) - {""}) == 7
    assert page.locator(".doors > section").count() == 3
    assert page.locator(".front .map a").count() == len(CHAPTERS) // 2
    links = page.locator(".front a").evaluate_all(
        "links => [...new Set(links.map(link => link.href))]"
    )
    assert len(links) > 100
    pages = {
        target: page.request.get(target)
        for target in {link.partition("#")[0] for link in links}
    }
    for link in links:
        target, _, anchor = link.partition("#")
        assert pages[target].ok, link
        text = unescape(pages[target].text())
        assert not anchor or f'id="{unquote(anchor)}"' in text, link
    assert "jupyter lab" in page.locator(".commands pre").first.inner_text()


@each_front
def test_each_row_has_its_other_names(page, site, folder, name):
    page.goto(site + name)
    rows = page.locator(".look-up li").evaluate_all(
        "all => all.map(row => [row.querySelector('a').textContent, row.dataset.words])"
    )
    called = WORDS["zh" if folder == "zh" else "en"]["19"]
    found = {plain(text): words for text, words in rows if not text[:2].isdigit()}
    found = {text: words for text, words in found.items() if text in called}
    assert len(found) > 250
    for text, words in found.items():
        assert words.endswith(re.sub("[,，] ?", "\n", called[text])), text


@each_front
def test_the_doctor_prints_what_its_card_says(
    page, site, folder, name, monkeypatch, capsys
):
    page.goto(site + name)
    form, report = page.locator("#check form"), page.locator(".reports > div:visible")
    monkeypatch.setenv(VARIABLE, "zh" if folder == "zh" else "en")
    gate = torch.linspace(-2, 2, 12, dtype=torch.float64).reshape(3, 4)
    before, after = (  # without the numbers of the lines
        re.sub(r"^ *\d+", "", text, flags=re.MULTILINE)
        for text in form.locator("pre").all_inner_texts()
    )
    after, called, call = after.rstrip().rsplit("\n", 2)
    assert called == "from helpers.doctor import examine"
    names = {"torch": torch, "Function": torch.autograd.Function, "examine": examine}
    given = {"gate": gate.requires_grad_(), "up": gate.cos().detach()}
    for line in (
        None,
        "gate * d_act * s * (1 - s)",
        "d_act * s * (1 + gate * (1 - s))",
    ):
        if line:
            form.locator("textarea").fill(line)
            expect(page.locator(".reports")).to_have_class("reports stale")
            form.locator("textarea").press("Enter")
        expect(page.locator(".reports")).to_have_class("reports")
        assigned = report.get_attribute("data-line")
        printed = " ".join(report.locator("samp").all_text_contents())
        code = (
            f"{before.rstrip()}\n        d_gate = {assigned}\n{after.strip(chr(10))}\n"
        )
        exec(call, names | given | {"SwiGLU": made_of(code, names, "SwiGLU")})
        assert capsys.readouterr().out.split() == printed.split()
    form.locator("textarea").fill("s * d_act")  # as it was found, in other words
    form.locator("[type=submit]").click()
    same = page.locator(".reports").get_attribute("data-same")
    expect(page.locator(".reports > div:visible p")).to_contain_text(same)
    form.locator("textarea").fill("d_act * (1 - s)")
    form.locator("[type=submit]").click()  # no report of this one is stored
    expect(page.locator(".reports > p")).to_be_visible()
    expect(report).to_have_attribute("data-line", "d_act * s")  # the first one's


@each_front
def test_the_front_page_is_alive(page, site, folder, name):
    page.set_viewport_size({"width": 390, "height": 900})
    page.goto(site + name)
    slider = page.locator("#x")
    field, said = (
        page.locator(".slope form textarea"),
        page.locator(".slope form output"),
    )
    hint = said.text_content()
    page.locator(".slope [type=submit]").click()
    expect(said).to_contain_text("x = 88.7")  # of the line that stands there
    for x, theirs, ours in (("0", "0.500000", "0.500000"), ("100", "nan", "1.00000")):
        slider.fill(x)
        expect(page.locator("#theirs-is")).to_have_text(theirs)
        expect(page.locator("#ours-is")).to_have_text(ours)
    slider.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#x-is")).to_have_text("100.1")
    late = "torch.where(x < 100, torch.exp(x) / (1 + torch.exp(x)), 1)"
    for line, mark in (  # what else is judged: tests/lessons/test_attempts.py
        ("torch.exp(x) / (1 + torch.exp(x))", "grad_output"),  # wrong below 88, too
        (f"grad_output * {late}", "float32"),  # nan from there on
        ("grad_output * torch.exp(x / 2) / (2 * torch.cosh(x / 2))", "x = 177.4"),
        ("grad_output * torch.sigmoid(x.clamp(max=20))", "○"),  # wrong in float64 alone
        ("grad_output.detach()", "○"),
        ("grad_output.abs() * torch.sigmoid(x)", "✗"),  # right where it is positive
        ("grad_output.clamp(-10, 10) * torch.sigmoid(x)", "✗"),
        ("grad_output.T * torch.sigmoid(x)", "✗"),
        ("return grad_output / (1 + torch.exp(-x))", "✓"),
    ):
        field.fill(line)
        expect(said).to_have_class("stale")  # the verdict is of the line before
        field.press("Enter")
        expect(said).to_contain_text(mark)
        expect(said).not_to_have_class("stale")
    assert page.locator("#yours").get_attribute("d").count("L") == 280
    page.reload()  # the browser keeps it
    expect(said).to_contain_text("✓")
    page.locator(".slope [type=reset]").click()
    expect(said).to_have_text(hint)
    page.reload()  # and has forgotten it
    expect(said).to_have_text(hint)
    assert page.locator(".look-up li:visible").count() == 0
    for words, row in {
        f"Traceback … RuntimeError: {MESSAGE} by an inplace operation": "one of the var",
        "freed, retain_graph": "backward through the graph a second time",
    }.items():
        page.locator("#look-up").fill(words)
        expect(page.locator(".look-up li:visible").first).to_contain_text(row)
        expect(page.locator(".look-up li:visible").first).to_be_in_viewport()
    assert page.url.endswith("q=freed%2C+retain_graph")  # for who comes back
    page.keyboard.press("ArrowDown")
    expect(page.locator(".look-up li:visible a").first).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(page.locator("#look-up")).to_be_focused()
    page.locator("#look-up").fill("龘")
    page.locator(".look-up .none button").click()  # the search, with the same words
    expect(page.locator("#pst-search-dialog input")).to_have_value("龘")
    page.keyboard.press("Escape")
    page.locator("#look-up").press("Escape")
    expect(page.locator(".look-up .results")).to_be_hidden()
    page.locator(".through button").first.click()
    assert page.locator(".map li:not(.aside)").count() == 3
    way = page.locator(".through output a").all_inner_texts()
    assert way == page.locator(".map li:not(.aside)").evaluate_all(
        "all => all.map(one => one.dataset.number)"
    )


def test_without_scripts_there_is_a_picture_a_question_and_a_link(browser, site):
    settings = {"java_script_enabled": False, "color_scheme": "dark"}
    with browser.new_context(**settings) as context:
        page = context.new_page()
        page.goto(site)
        expect(page.locator(".plot .nan")).to_be_visible()
        expect(page.locator(".slope")).to_contain_text("Where does autograd stop?")
        expect(page.locator(".slope form + p a")).to_be_visible()
        expect(page.locator(".slope form")).to_be_hidden()
        dark = "getComputedStyle(document.body).backgroundColor"
        assert page.evaluate(dark) == "rgb(18, 18, 18)"


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_drill_is_judged_on_a_page(page, site, folder):
    show(page, site, f"{folder}/03_mul_constant.html")
    expect(page.locator(".in-fields")).to_be_hidden()
    form = page.locator("form.attempt").nth(1)
    for line, mark in (("g.roll(1, 0)", "✗ 3.b"), ("g.roll(-1, 0)", "✓ 3.b")):
        form.locator("textarea").fill(line)
        form.locator("textarea").press("Enter")
        expect(form.locator("output")).to_contain_text(mark)


@pytest.mark.parametrize("grows_by_itself", [True, False])
def test_on_a_phone_a_long_line_is_seen_to_its_end(page, site, grows_by_itself):
    if not grows_by_itself:  # as in a browser without field-sizing
        page.add_init_script("CSS.supports = () => false")
    for name in ("index.html", "notebooks/03_mul_constant.html"):
        show(page, site, name, width=390)
        if not grows_by_itself:
            page.add_style_tag(
                content="form textarea { field-sizing: fixed !important }"
            )
        form = page.locator("form.attempt").last
        field = form.locator("textarea")
        line = " + ".join(["g"] * 40)
        field.fill(line.replace(" + ", " +\n"))  # pasted
        expect(field).to_have_value(line)
        hidden = "f => [f.scrollHeight - f.clientHeight, f.scrollWidth - f.clientWidth]"
        assert max(field.evaluate(hidden)) <= 0
        assert field.evaluate("f => f.clientHeight") > 80
        field.fill("")
        assert field.evaluate("f => f.clientHeight") < 50


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_first_exercise_is_judged_on_a_page(page, site, folder):
    show(page, site, f"{folder}/00_start_here.html")
    form = page.locator("form.attempt")
    for line, mark in (
        ("grad_output", "0.3333"),  # times what is right
        ("3 * x", "3 * x"),  # which is not saved
        ("return 3 * grad_output", "✓ 0.1"),
    ):
        form.locator("textarea").fill(line)
        form.locator("textarea").press("Enter")
        expect(form.locator("output")).to_contain_text(mark)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_prediction_is_made_on_a_page(page, site, folder):
    name = f"{folder}/05_higher_order.html"
    show(page, site, name)
    form = page.locator("form.predict").first
    fold = page.locator("details.hide.below-input").first
    why = page.locator("details:not([class])").first
    expect(fold.locator(".cell_output")).to_be_hidden()
    expect(why).to_be_hidden()
    form.get_by_role("button", name="second").click()
    expect(form.locator("output")).to_contain_text("✗")
    expect(fold.locator(".cell_output")).to_be_visible()
    expect(why.locator("p").first).to_be_visible()
    form.get_by_role("button", name="third").click()
    expect(form.locator("output")).to_contain_text("✓")
    show(page, site, name)  # the browser keeps it
    expect(form.locator("output")).to_contain_text("✓")
    checks = page.locator("form.predict").nth(2)
    for guess in ("[True, true, False]", "T T F", "对 对 错"):
        checks.locator("input").fill(guess)
        checks.locator("button").click()
        expect(checks.locator("output")).to_contain_text("✓")
    # What else is read: tests/lessons/test_prediction.py.
    checks.locator("input").fill("not True")
    checks.locator("button").click()
    expect(checks.locator("output")).to_contain_text("○")


def test_the_drawer_closes_and_a_figure_grows_on_a_phone(page, site):
    show(page, site, "notebooks/05_higher_order.html", width=390)
    page.locator(".secondary-toggle").first.click()
    drawer = page.locator("#pst-secondary-sidebar-modal")
    drawer.locator(".page-toc a:visible").nth(1).click()
    expect(drawer).to_be_hidden()
    page.locator(".cell_output img:visible").first.click()
    expect(page.locator("#figure img")).to_be_visible()
    page.locator("#figure").click()
    expect(page.locator("#figure")).to_be_hidden()


def test_the_switch_keeps_the_section(page, site):
    show(page, site, "notebooks/05_higher_order.html")
    page.locator(".bd-article section[id]").nth(3).evaluate("s => s.scrollIntoView()")
    page.locator("a.switch").first.evaluate("link => link.click()")
    page.wait_for_url("**/zh/05_higher_order.html#section-4")
    page.wait_for_timeout(1_000)
    top = """() => document.querySelectorAll(".bd-article section[id]")[3]
        .getBoundingClientRect().top"""
    assert abs(page.evaluate(top)) < 300


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_row_that_was_found_is_marked(page, site, theme):
    show(page, site, "notebooks/19_which_way.html#row-100", theme=theme)
    expect(page.locator("#row-100")).to_have_css("outline-style", "solid")
    expect(page.locator("#row-99")).to_have_css("outline-style", "none")


def test_on_a_dark_page_figures_are_dark_and_photographs_are_not(page, site):
    show(page, site, "notebooks/08_c_and_cpp.html", theme="dark")
    described = "img[alt^='A photograph']"
    expect(page.locator(described)).to_have_css("filter", "none")
    figure = page.locator(f".cell_output img:not({described})").first
    expect(figure).to_have_css("filter", re.compile("invert"))


def test_a_page_that_is_not_there_leads_on(page, site):
    text = page.request.get(f"{site}404.html").text()
    nowhere = f"{site}zh/nowhere/at/all.html"
    page.route(
        nowhere, lambda route: route.fulfill(body=text, content_type="text/html")
    )
    page.goto(nowhere)
    link = page.get_by_role("link").first
    expect(link).to_have_attribute("href", re.compile("index.html$"))
    page.wait_for_load_state("networkidle")
    assert link.evaluate("a => a.href") == f"{site}index.html"


def test_search_html_leads_to_what_was_typed(page, site):
    page.goto(f"{site}search.html?q=freed+retain_graph")
    page.wait_for_url("**/index.html?q=freed+retain_graph")
    expect(page.locator(".look-up li:visible").first).to_contain_text("second time")


def test_on_a_phone_the_rows_of_19_are_cards(page, site):
    show(page, site, "notebooks/19_which_way.html", width=360)
    wide = "tables => tables.filter(t => t.scrollWidth > t.clientWidth + 1).length"
    tables = page.locator(".pst-scrollable-table-container")
    assert tables.count() > 9 and tables.evaluate_all(wide) == 1  # the matrix
    steps = page.locator("nav.bar a:has(span)").all_inner_texts()
    assert [" ".join(step.split()) for step in steps] == ["← Previous", "Next →"]
    # Words that are wider than their link lie over the next one.
    wider = "links => links.filter(a => a.scrollWidth > a.clientWidth).length"
    assert page.locator("nav.bar a:visible").evaluate_all(wider) == 0


@pytest.mark.parametrize("width", [1440, 1000, 769, 768, 390])
def test_the_head_of_19_s_matrix_stays(page, site, width):
    show(page, site, "notebooks/19_which_way.html", width=width)
    matrix = page.locator("table.matrix")
    matrix.evaluate("table => table.parentElement.scrollIntoView({ block: 'center' })")
    matrix.locator("td").last.evaluate(
        "cell => cell.scrollIntoView({ block: 'nearest' })"
    )
    for there in (
        matrix.locator("th").last,
        matrix.locator("tr").last.locator("td").first,
    ):
        expect(there).to_be_in_viewport()
    edge = "one => one.getBoundingClientRect()"
    head = matrix.locator("th").last.evaluate(f"{edge}.top")
    assert head > page.locator("nav.bar").evaluate(f"{edge}.bottom") - 1
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wide) <= 0


@pytest.mark.parametrize("folder", FOLDERS)
def test_hints_verdicts_and_solutions_are_folded_under_an_exercise(page, site, folder):
    show(page, site, f"{folder}/02_static_functions.html")
    given = [one for one in exercises() if one.number.startswith("2.")]
    folds = page.locator("details.exercise")
    drills = 1  # a cell of them has one fold, with the answers
    assert folds.count() == sum(len(one.hints) + 2 for one in given) + drills
    assert page.locator("details.exercise[open]").count() == 0
    verdicts = page.locator(".exercise-help .verdict")
    assert verdicts.count() == 3 * len(given)
    expect(verdicts.first).to_be_hidden()
    first = {
        "notebooks": "✗ 2.1 Square: ctx.saved_tensors is a tuple",
        "zh": "✗ 2.1 Square：即使只保存了一个张量",
    }
    help_with_2_1 = page.locator(".exercise-help").filter(has=page.locator(".verdict"))
    places = help_with_2_1.first.locator("summary")
    for place in places.all():
        place.click()
    expect(verdicts.first).to_contain_text(first[folder])
    shown = help_with_2_1.first.locator("details").last
    expect(shown).to_contain_text("return 2 * x * grad_output")
    expect(page.locator(".to-write .cell_output").first).to_be_hidden()
    help_with_2_1.first.locator("[href='#run']").click()  # how to write it
    expect(page.locator(".how-to-run code")).to_be_visible()
