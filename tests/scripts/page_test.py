# SPDX-License-Identifier: MIT
"""`report.html` as text: what it says, that it is escaped, and that it loads nothing."""

import base64
import csv
import hashlib
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from justhtml import Element, JustHTML, Node

from attnplot.cli import main
from attnplot.drawing import seconds_text
from attnplot.files import write_text
from attnplot.inline_svg import contrast_with_white, printable
from attnplot.report import write_report
from attnplot.table import TableError, load
from attnplot.tables import analyse
from synthetic import Run

HOSTILE = (
    '"><script>alert(1)</script>',
    "</script><img src=x onerror=alert(2)>",
    "' onmouseover='alert(3)",
    "\u2028{{ 7 * 7 }}<!-- &lt; --",
    "javascript:alert(4)",
)


def spaced(text: str) -> str:
    """One blank for any run of blanks, tied ones included."""
    return " ".join(text.replace("\u00a0", " ").split())


class Balanced(HTMLParser):
    """Fails where an element is not closed, or closed out of order: this page closes all."""

    EMPTY = frozenset("meta link br input".split())

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()


def parse(text: str) -> JustHTML:
    """Refuses whatever the HTML standard calls a parse error, and elements that are not closed."""
    Balanced(text)
    return JustHTML(text, strict=True, sanitize=False)


def html(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


def elements(document: JustHTML) -> list[Element]:
    found: list[Element] = []
    todo: list[Node] = [document.root]
    while todo:
        node = todo.pop()
        if isinstance(node, Element):
            found.append(node)
        todo += node.children or []
    return found


def attributes(element: Element) -> dict[str, str]:
    return {name: value or "" for name, value in (element.attrs or {}).items()}


def attribute(element: Element, name: str) -> str:
    return attributes(element)[name]


def source(element: Element) -> str:
    """The text of a style or script element, character by character."""
    return "".join(str(child.data) for child in element.children or [])


def query(node: JustHTML | Element, selector: str) -> list[Element]:
    return [found for found in node.query(selector) if isinstance(found, Element)]


def text_of(node: Node) -> str:
    return spaced(node.to_text(separator=" "))


@pytest.fixture(scope="module")
def document(reported: Path) -> JustHTML:
    return parse(html(reported))


def hostile_run() -> Run:
    run = Run()
    for text in HOSTILE:
        name = f"evil.{''.join(text.split())}"  # a name with blanks in it is left out by the reader
        run.curve(name, lambda n: 1e-8 * n**2, tags=text, repro_cmd=f"run --only '{text}'")
        cells = {"scope": "layer", "resolved_impl": text}
        run.row(name, 128, status="error", status_reason=text, repro_cmd=text, **cells)
    return run


def test_ids_are_unique_and_references_resolve(document: JustHTML) -> None:
    every = elements(document)
    ids = [attribute(e, "id") for e in every if "id" in attributes(e)]
    assert len(ids) == len(set(ids)) > 250
    pointers = ("href", "popovertarget", "aria-labelledby", "clip-path")
    for element in every:
        for name in pointers:
            value = attributes(element).get(name, "")
            found = re.fullmatch(r"url\(#(.+)\)|#?(.+)", value)
            if found and not value.startswith("data:"):
                assert (found[1] or found[2]) in ids, (element.name, name, value)


def test_it_loads_nothing_and_lets_nothing_in(reported: Path, document: JustHTML) -> None:
    for element in elements(document):
        for name, value in attributes(element).items():
            assert name not in ("src", "srcset", "style", "action", "formaction", "ping"), name
            assert not name.startswith("on"), name
            assert "//" not in value, (element.name, name, value)
            if name == "href":
                assert value.startswith("#") or value == "data:,"
    (style,), (script,) = query(document, "style"), query(document, "script")
    for text in (source(style), source(script)):
        assert "url(" not in text
        assert "@import" not in text
        assert "http" not in text
    (policy,) = [
        attribute(m, "content")
        for m in query(document, "meta")
        if attributes(m).get("http-equiv") == "Content-Security-Policy"
    ]

    def hash_of(text: str) -> str:
        return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules == {
        "default-src": "'none'",
        "style-src": f"'{hash_of(source(style))}'",
        "script-src": f"'{hash_of(source(script))}'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert len(html(reported).encode()) < 2_000_000


def test_it_says_what_the_markdown_says(reported: Path, document: JustHTML) -> None:
    rows = {
        tuple(text_of(c) for c in (row.children or []) if isinstance(c, Element))
        for row in query(document, "tr")
    }
    shown = text_of(document.root)
    compared = 0
    for line in (reported / "report.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and not line.startswith("| ---"):
            cells = [re.sub(r"\\(.)", r"\1", c).strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]]
            if cells[2:] and set(cells[2:]) == {"–"}:
                del cells[2:]  # a reason stands across the whole row
            assert tuple(cells) in rows, line
        elif line.startswith("!["):
            assert spaced(line[2:].split("](")[0]) in shown
        elif line and not line.startswith("| ---"):
            assert spaced(line.lstrip("#- ").strip("*")) in shown, line
        compared += bool(line)
    assert compared > 100


def test_every_point_is_there_with_its_numbers(reported: Path, document: JustHTML) -> None:
    table = query(document, "#points")[0]
    heads = [text_of(th) for th in query(table, "thead th")]
    shown = {}
    for tr in query(table, "tbody tr"):
        cells = [c for c in (tr.children or []) if isinstance(c, Element)]
        (command,) = query(cells[0], "code")
        shown[text_of(command)] = dict(zip(heads, cells, strict=True))
    with (reported / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(shown) == 240
    for row in rows:
        point = shown[row["repro_cmd"]]
        assert text_of(point["backend"]).startswith(f"{row['backend']} {row['backend']}, ")
        assert attribute(point["n"], "data-v") == row["n_kv"]
        assert text_of(point["status"]).split()[0] == row["status"]
        assert ("noisy" in text_of(point["status"])) is (row["noisy"] == "true")
        assert float(attribute(point["median"], "data-v") or "nan") == pytest.approx(
            float(row["time_median_s"] or "nan"), nan_ok=True
        )
        if row["status"] != "ok":
            assert text_of(point["median"]) == "–"
            assert spaced(f"{row['status']}: {row['status_reason']}") in text_of(
                point["backend"]
            ).replace(" :", ":")
            continue
        assert text_of(point["median"]) == seconds_text(float(row["time_median_s"]))
        assert text_of(point["samples"]) == row["samples"] == "10"
        low, high = text_of(point["95 % interval"]).split(" – ")
        assert high == seconds_text(float(row["ci95_hi_s"]))
        assert seconds_text(float(row["ci95_lo_s"])).startswith(low)


def test_figures_have_a_name_a_caption_and_their_sentences(document: JustHTML) -> None:
    found = query(document, "figure")
    assert len(found) == 7
    for figure in found:
        (svg,) = query(figure, "svg")
        assert attribute(svg, "role") == "img"
        assert len(attribute(svg, "aria-label")) > 40
        (caption,) = query(figure, "figcaption")
        (name,) = query(caption, "b")
        assert attribute(svg, "aria-label").startswith(text_of(name))
    assert "dots are single calls" in text_of(found[0])


@pytest.mark.parametrize("text", HOSTILE)
def test_what_comes_from_the_files_is_text(tmp_path: Path, text: str) -> None:
    folder = hostile_run().write(tmp_path)
    state = json.loads((folder / "run.json").read_text())
    state["machine"]["cpu_model"] = state["git_sha"] = text
    state["argv"] = [text]
    state["compiler"]["flags"] = {text: text}
    (folder / "run.json").write_text(json.dumps(state))
    with (folder / "samples.csv").open("a") as out:
        out.write(f"r,p0,{text.replace(chr(34), '')},,,,,,,\n")
    assert main(["report", str(folder), "--format", "html"]) == 0
    page = parse(html(folder))
    every = elements(page)
    assert [e.name for e in every].count("script") == 1
    assert not [e for e in every if e.name == "img"]
    assert not [a for e in every for a in attributes(e) if a.startswith("on")]
    shown = text_of(page.root)
    assert shown.count(spaced(text)) > 20
    assert spaced(text) in text_of(query(page, "title")[0])
    assert "49" not in text_of(query(page, ".facts")[0])
    button = query(page, "#points button")[0]
    assert query(page, f"#{attribute(button, 'aria-labelledby')}")


def test_no_character_is_illegal(tmp_path: Path) -> None:
    run = Run()
    run.row("a.b", 128, status="unavailable", status_reason="no \ufffe toolkit")
    run.curve("blas.three_step", lambda n: 1e-8 * n**2)
    folder = run.write(tmp_path)
    assert main(["report", str(folder), "--format", "html"]) == 0
    assert "\ufffe" not in html(folder)
    assert "results.csv row 2: status_reason 'no \\ufffe toolkit'" in text_of(
        parse(html(folder)).root
    )
    assert printable("a\x01b\x0b\ufffe\ud800") == "a\ufffdb\ufffd\ufffd\ufffd"


@pytest.mark.parametrize("formats", ["md", "html", "html,md"])
def test_a_run_without_a_time_is_reported_and_ends_with_4(
    tmp_path: Path, formats: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run()
    for n in (128, 256):
        run.row("cuda.naive", n, status="unavailable", status_reason="no toolkit")
    folder = run.write(tmp_path / "refused")
    assert main(["report", str(folder), "--format", formats]) == 4
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert {str(folder / f"report.{name}") for name in formats.split(",")} <= set(said.out.split())
    for name in ("md", "html"):
        assert (folder / f"report.{name}").is_file() is (name in formats)
    if "html" in formats:
        page = parse(html(folder))
        shown = text_of(page.root)
        assert "Nothing was measured: no row has a time." in shown
        assert "0 of 2 points have a time." in shown
        assert "no toolkit" in shown
        assert not query(page, "figure")
        assert len(query(page, "#points tbody tr")) == 2


def test_a_run_without_a_row_says_so(tmp_path: Path) -> None:
    folder = Run().write(tmp_path)
    assert main(["report", str(folder), "--format", "html"]) == 4
    page = parse(html(folder))
    assert "results.csv has no row." in text_of(page.root)
    assert not query(page, "#points")


def test_a_run_without_fits(tmp_path: Path) -> None:
    run = Run(rounds=3)
    run.point("cpu.naive", 128, 1e-3)
    run.row("cpu.naive", 256, n_kv=512, status="unsupported", status_reason="no cross attention")
    folder = run.write(tmp_path)
    assert main(["report", str(folder), "--format", "html"]) == 0
    shown = text_of(parse(html(folder)).root)
    assert "local slopes only" in shown
    assert "256 × 512" in shown
    assert "None" not in shown
    assert "nan" not in shown


def test_a_relative_folder_with_blanks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    run.curve("cpu.naive", lambda n: 1e-8 * n**2)
    run.write(tmp_path / "my run (1)")
    monkeypatch.chdir(tmp_path)
    assert main(["report", "my run (1)", "--format", "html"]) == 0
    assert "7 of 7 points have a time." in html(tmp_path / "my run (1)")
    assert not (tmp_path / "my run (1)" / "figures").exists(), "the page holds its figures"


def test_the_same_results_give_the_same_bytes(reported: Path) -> None:
    before = html(reported)
    write_report(analyse(load(reported)), ("html",))
    assert html(reported) == before


def test_the_old_file_stays_until_the_new_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    write_text(path, "old")
    link = tmp_path / "link.html"
    link.symlink_to(path)
    write_text(link, "new")
    assert link.is_symlink()
    assert path.read_text() == "new"

    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device", str(source), None, str(target))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(TableError, match=r"report\.html: cannot be written \(No space left"):
        write_text(path, "newer")
    assert path.read_text() == "new"
    assert sorted(os.listdir(tmp_path)) == ["link.html", "report.html"]


def test_the_themes_can_be_read() -> None:
    """Text on each of its backgrounds, light and dark, by the numbers of the style sheet."""
    css = (Path(str(write_text.__code__.co_filename)).parent / "assets/page.css").read_text()
    colours = dict(re.findall(r"--(\w+): light-dark\((#\w+, #\w+)\)", css))
    for theme in (0, 1):

        def luminance(name: str, theme: int = theme) -> float:
            return 1.05 / contrast_with_white(colours[name].split(", ")[theme]) - 0.05

        for text in ("text", "soft", "link"):
            for ground in ("page", "card", "hover", *(["mark"] if text == "text" else [])):
                low, high = sorted((luminance(text), luminance(ground)))
                assert (high + 0.05) / (low + 0.05) >= 4.5, (theme, text, ground)
