"""The Chinese edition says what the English one says, and nothing of it is outdated."""

import ast
import json

import pytest

from tools import translate

SOURCES = translate.sources()


@pytest.mark.parametrize(
    "path", (*SOURCES, translate.LESSONS), ids=lambda path: path.stem
)
def test_the_chinese_edition_is_whole(path):
    wrong = "\n".join(translate.check(path))
    assert not wrong, f"update the Chinese edition, as CONTRIBUTING.md says:\n{wrong}"


def test_a_per_cent_sign_is_no_format(tmp_path, monkeypatch):
    monkeypatch.setattr(translate, "EDITION", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("About 95% of them.", encoding="utf-8")
    translate.update(page)
    assert "python-format" not in translate.catalogue(page).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_without_translations_the_english_comes_back(path, tmp_path, monkeypatch):
    monkeypatch.setattr(translate, "EDITION", tmp_path)
    _, text = translate.built(path)
    english = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        ours = json.loads(text.replace("](../README.zh.md", "](../README.md"))
        assert ours["metadata"].pop("language") == "zh"
        assert ours == json.loads(english)
    else:
        for ours, theirs in translate.IN_README.items():
            english = english.replace(ours, theirs)
        assert text == english


@pytest.mark.parametrize(
    ("english", "chinese", "problem"),
    [
        ("Save `x`.", "保存它。", "lacks the code x"),
        ("Save it.", "保存 `x`。", "has the code x, which the English has not"),
        ("If `x` is `x`.", "若 `x`。", "lacks the code x"),
        ("It is $x^2$.", "它是 $x^3$。", "lacks the formula $x^2$"),
        ("See [it](a.md).", "见[它](b.md)。", "lacks the link a.md"),
        ("![It](a.png)", "![它](b.png)", "lacks the link a.png"),
        ("It takes 4,000 steps.", "需要 400 步。", "lacks the number 4,000"),
        ("134 million logits", "1.34 万个 logits", "lacks the number 1.34e+08"),
        ("| a | b |", "| 一 |", "lacks the columns 2"),
        (
            "**Why?** Because.",
            "**为什么？**因为。",
            "has marks that are shown as they are",
        ),
        ("A Function", "一个Function", "needs a space between Chinese and Latin"),
        ("Run `f` now", "运行`f`吧", "needs a space between Chinese and Latin"),
        ("Yes, it is.", "对,就是它。", "needs full-width punctuation beside Chinese"),
        ("Use torch, now", "用 torch ，现在", "has a space beside its punctuation"),
        ("The remedy.", "治法。", "says 治法; write 改法"),
    ],
)
def test_a_translation_that_breaks_a_rule_is_refused(english, chinese, problem):
    assert any(problem in said for said in translate.problems(english, chinese))


def test_a_number_may_stand_in_wan_or_yi():
    assert list(translate.problems("134 million logits", "1.34 亿个 logits")) == []


def test_a_bar_in_code_is_no_column():  # other right translations are those of the edition
    assert list(translate.problems("| a | `b|c` |", "| 甲 | `b|c` |")) == []


def test_a_link_carries_the_title_of_its_chapter():
    english, chinese = translate.titles()["03_mul_constant.ipynb"]
    link = "← [{}](03_mul_constant.ipynb)"
    assert not list(translate.mistitled(link.format(english), link.format(chinese)))
    assert list(translate.mistitled(link.format(english), link.format("03 常数")))


def test_only_the_files_behind_may_lag(tmp_path, monkeypatch):
    monkeypatch.setattr(translate, "EDITION", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("# Hello there\n", encoding="utf-8")
    translate.update(page)
    place, text = translate.built(page)
    place.write_text(text, encoding="utf-8")
    assert len(list(translate.check(page))) == 1
    monkeypatch.setattr(translate, "BEHIND", {"page"})
    assert list(translate.check(page)) == []
    known = translate.read(page)
    known.get("Hello there").string = "你好"
    translate.write(page, known)
    place.write_text(translate.built(page)[1], encoding="utf-8")
    assert "off BEHIND" in " ".join(translate.check(page))


def test_the_files_behind_exist():
    assert translate.BEHIND <= {path.stem for path in (*SOURCES, translate.LESSONS)}


def test_changed_english_is_outdated_until_somebody_looks(tmp_path, monkeypatch):
    monkeypatch.setattr(translate, "EDITION", tmp_path)
    page = tmp_path / "page.md"

    def say(english):
        page.write_text(f"# {english}\n\n```\nno message\n```\n", encoding="utf-8")
        translate.update(page)
        return translate.catalogue(page)

    first = "A slope that is nan at 100, under a heading that is so long that Babel wraps it"
    po = say(first)
    assert [line.split(": ")[1] for line in translate.check(page)][0] == "missing"
    assert "no message" not in po.read_text(encoding="utf-8")
    known = translate.read(page)
    known.get(first).string = "在 100 处为 nan 的斜率"
    translate.write(page, known)
    place, text = translate.built(page)
    assert "# 在 100 处为 nan 的斜率\n" in text
    place.write_text(text, encoding="utf-8")
    assert list(translate.check(page)) == []

    say(first + "!")
    for _ in range(2):  # also after another update, and as no comment
        assert translate.read(page).get(first + "!").previous_id == [first]
        assert "\n#| msgid" in po.read_text(encoding="utf-8")
        translate.update(page)
    assert f"# {first}!\n" in translate.built(page)[1]
    missing, stale = translate.check(page)
    assert missing == f"page.md: outdated: {first[:60]}"
    assert stale.startswith("page.zh.md: not what its catalogue makes")


def test_what_a_figure_says_is_found():
    code = """ax.plot(x, label="loss", color="tab:blue")
ax.set(title=f"step {k:.1f}", xticks=[], ha="upper left")
names = {"two words": 1}
print("not this one")
draw.ring(("output", "grad_fn"))"""
    found = [*translate.shown(ast.parse(code))]
    assert found == ["loss", "step {}", "two words", "output", "grad_fn"]
