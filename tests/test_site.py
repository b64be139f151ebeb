"""The course page: every lab in order, nothing from outside, no solution in sight."""

import re
import shutil
import subprocess
import sys
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest

from pp_lab import Cost, schedules, simulate
from pp_lab.show import palette

pytest.importorskip("sphinx", reason="the course page needs Sphinx: pip install -e '.[site]'")
pytest.importorskip("myst_nb", reason="the course page needs MyST-NB: pip install -e '.[site]'")

pytestmark = pytest.mark.timeout(300)  # the first test builds the site: 20 s of processor time
ROOT = Path(__file__).parent.parent
NAMES = sorted(
    (p.stem for p in (ROOT / "solutions").glob("*.ipynb")), key=lambda n: (n != "pp_lab", n)
)
VOID = "area base br col embed hr img input link meta source track wbr".split()


class Page(HTMLParser):
    """The elements of a page: (tag, attributes, text inside, tags and classes around)."""

    def __init__(self, path):
        super().__init__()
        self.path, self.elements, self.open = path, [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        around = [f"{e[0]}.{e[1].get('class') or ''}" for e in self.open]
        element = (tag, dict(attributes), [], around)
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        for element in self.open:
            element[2].append(data)

    def all(self, *tags, kind=None):
        """(attributes, text, what is around) of the elements of these tags."""
        for tag, attributes, text, around in self.elements:
            if tag in tags and (not kind or kind in (attributes.get("class") or "").split()):
                yield attributes, "".join(text), around


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, ROOT / "site" / "build.py", folder]
    done = subprocess.run(command, cwd=folder.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr, "the build is to be silent"
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {p.relative_to(site).with_suffix("").as_posix(): Page(p) for p in site.rglob("*.html")}


def notebook(name):
    return nbformat.read(ROOT / "solutions" / f"{name}.ipynb", as_version=4)


def everything(name):
    """All that a lab says, in text, code and printed output."""
    texts = []
    for cell in notebook(name).cells:
        texts.append(cell.source)
        for output in cell.get("outputs", ()):
            texts += [output.get("text", ""), output.get("data", {}).get("text/plain", "")]
    return re.sub(r"[\s*]+", " ", " ".join(texts)).lower()


def test_every_solution_has_a_page_and_the_contents_list_them_in_order(pages):
    assert sorted(name for name in pages if name.startswith("labs/")) == sorted(
        f"labs/{name}" for name in NAMES
    )
    for page in pages.values():
        links = [a["href"] for a, _, _ in page.all("a", kind="internal") if "href" in a]
        listed = [Path(link.partition("#")[0] or page.path).stem for link in links]
        contents = [name for name in dict.fromkeys(listed) if name in NAMES]
        assert contents[: len(NAMES)] == NAMES, page.path


def test_no_page_loads_anything_from_outside(site, pages):
    for page in pages.values():
        for tag, attributes, _, _ in page.elements:
            for name in ("src", "href", "data", "srcset", "action", "style"):
                value = attributes.get(name) or ""
                if tag != "a":
                    assert not re.search(r"(?:^|\()\s*(https?:)?//", value), (page.path, tag, value)
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", style.read_text("utf-8")), (
            style
        )


def test_every_link_inside_leads_to_a_page_and_to_a_place_on_it(site, pages):
    places = {
        page.path.resolve(): {a["id"] for _, a, _, _ in page.elements if "id" in a}
        for page in pages.values()
    }
    for page in pages.values():
        for attributes, _, _ in page.all("a"):
            target = attributes.get("href", "")
            if re.match(r"\w+:", target) or not target:
                continue
            file, _, place = target.partition("#")
            there = (page.path.parent / file).resolve() if file else page.path.resolve()
            assert there.exists(), (page.path.name, target)
            if place and there in places:
                assert place in places[there], (page.path.name, target)


def test_every_picture_has_a_text_in_its_place(pages):
    for page in pages.values():
        for attributes, _, _ in page.all("img"):
            if attributes.get("class") != "sidebar-logo":
                assert (attributes.get("alt") or "").strip(), page.path
        for attributes, _, _ in page.all("svg", kind="map"):
            assert "lab 2 needs 1" in attributes["aria-label"]


@pytest.mark.parametrize("name", NAMES)
def test_a_solution_is_behind_a_click_and_its_stub_in_sight(pages, name):
    page = pages[f"labs/{name}"]
    blocks = [(text, around) for _, text, around in page.all("pre")]
    hidden = [text for text, around in blocks if any(a.startswith("details.") for a in around)]
    seen = "\n".join(text for text, around in blocks if text not in hidden)
    answers = [c for c in notebook(name).cells if "### BEGIN SOLUTION" in c.source]
    assert answers and len(hidden) == len(answers)
    for cell in answers:
        (whole,) = [text for text in hidden if text.strip() == without_marks(cell.source).strip()]
        for part in re.findall(r"(?s)### BEGIN SOLUTION\n(.*?)### END SOLUTION", cell.source):
            assert part.strip() in whole
            assert part.strip() not in seen
    for attributes, _, _ in page.all("details"):
        assert "open" not in attributes
    assert "BEGIN SOLUTION" not in page.path.read_text(encoding="utf-8")


def without_marks(source):
    return re.sub(r"(?m)^ *### (BEGIN|END) SOLUTION\n?", "", source)


@pytest.mark.parametrize("name", NAMES)
def test_a_lab_keeps_its_timelines_and_what_it_printed(pages, name):
    page = pages[f"labs/{name}"]
    text = page.path.read_text(encoding="utf-8")
    for cell in notebook(name).cells:
        for output in cell.get("outputs", ()):
            html = output.get("data", {}).get("text/html", "")
            for picture in re.findall(r'src="(data:image/png;base64,[^"]{200})', html):
                assert picture in text
    printed = "".join(text for _, text, _ in page.all("pre"))
    for cell in notebook(name).cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "stream" and "rank server" not in output.text:
                assert output.text.strip() in printed


def rows(page, kind):
    """The cells of a table, row by row, without its head."""
    found = []
    for tag, _, text, around in page.elements:
        if any(re.match(rf"table\..*\b{kind}\b", a) for a in around):
            if tag == "tr" and "tbody." in around[-1]:
                found.append([])
            elif tag == "td":
                found[-1].append("".join(text).strip().replace("\u200b", ""))
    return found


def test_the_table_of_labs_is_what_the_notebooks_say(pages):
    for name, row in zip(NAMES, rows(pages["index"], "labs"), strict=True):
        cells = notebook(name).cells
        title, claim, exercises, points, minutes = row
        heads = [re.match(r"### Exercise \d+ .* (\d+) points?", cell.source) for cell in cells]
        heads = [head for head in heads if head]
        assert cells[0].source.startswith(f"# Lab {title}\n")
        assert claim[-30:] in re.sub(r"[*`]", "", cells[0].source.replace("'", "’"))
        assert int(exercises) == len(heads)
        assert int(points) == sum(int(head[1]) for head in heads)
        assert f" {minutes} minutes" in cells[0].source


def test_every_term_of_the_glossary_is_used_in_the_lab_that_it_leads_to(pages):
    source = (ROOT / "site" / "glossary.md").read_text(encoding="utf-8")
    entries = re.findall(r"(?m)^((?:\S.*\n)+)  (\S.*)$", "\n".join(re.findall(GLOSSARY, source)))
    entries = [(names, text) for names, text in entries if set(labs_named(text)) <= set(NAMES)]
    terms = [(term, text) for names, text in entries for term in names.split("\n") if term]
    shown = [
        t.strip().removesuffix("¶").replace("’", "'")
        for _, t, around in pages["glossary"].all("dt")
    ]
    assert [term for term, _ in terms] == shown
    assert len(terms) > 50 and len(set(shown)) == len(shown)
    for term, text in terms:
        (lab,) = labs_named(text)
        assert term.lower() in everything(lab), f"{term} is not in {lab}"


def test_the_map_says_which_lab_needs_which(pages):
    needs = {row[0].split(" ")[0]: row[1] for row in rows(pages["map"], "needs")}
    assert list(needs) == [notebook(name).cells[0].source.split(" ")[2] for name in NAMES]
    assert needs["1"] == "nothing" and needs["2"] == "Lab 1" and needs["8"] == "Lab 2, Lab 7"
    for number, told in needs.items():
        assert all(int(n) < int(number) for n in re.findall(r"\d+", told))


def labs_named(text):
    return re.findall(r"\{(?:lab|exercise)\}`(\w+)", text)


GLOSSARY = r"(?s)```\{glossary\}\n(.*?)```"


def test_a_glossary_entry_takes_one_or_two_sentences(pages):
    for _, text, around in pages["glossary"].all("dd"):
        if "glossary" in around[-1]:
            sentences = re.findall(r"[.?](?= [A-Z*]|$)", re.sub(r" Lab \d+\s*$", "", text.strip()))
            assert 1 <= len(sentences) <= 3, text


def test_the_numbers_of_the_glossary_are_computed(pages):
    text = " ".join(t for _, t, _ in pages["glossary"].all("dd"))
    p, m = 4, 8
    cost = Cost(F=1, B=2)
    assert "For GPipe and 1F1B it is (p−1)/(m+p−1)" in text
    for make in (schedules.gpipe, schedules.one_f_one_b):
        assert simulate(make(p, m), cost).bubble == Fraction(p - 1, m + p - 1)
    assert "Every rank holds m activations" in text
    assert simulate(schedules.gpipe(p, m), cost).peak_activations == [m] * p
    assert "rank r holds at most p−r activations" in text
    t = simulate(schedules.one_f_one_b(p, m), cost)
    assert t.peak_activations == [p - r for r in range(p)]
    assert "holds up to 2p−1 activations" in text
    assert max(simulate(schedules.eager_1f1b(p, m), cost).peak_activations) == 2 * p - 1
    assert "no more activations than 1F1B’s first rank" in text
    assert max(simulate(schedules.zb_h1(p, m), cost).peak_activations) == p


def test_the_table_of_bubbles_holds_every_definition_of_one_run(pages):
    table = {row[0]: row[1:] for row in rows(pages["glossary"], "bubbles")}
    assert table["1F1B"] == ["33", "33", "27.3%", "37.5%", "27.3%", "9"]
    assert table["ZB-H1"] == ["27", "27", "11.1%", "12.5%", "11.1%", "3"]
    assert table["ZB-H2"] == ["27", "24", "11.1%", "12.5%", "0.0%", "3"]


def test_the_letters_for_torch_are_those_that_torch_has(pages):
    schedules_of_torch = pytest.importorskip("torch.distributed.pipelining.schedules")
    kinds = schedules_of_torch._ComputationType
    names = ("FORWARD", "FULL_BACKWARD", "BACKWARD_INPUT", "BACKWARD_WEIGHT", "OVERLAP_F_B")
    (letters,) = [row for row in rows(pages["glossary"], "letters") if row[0].startswith("torch")]
    assert letters[-5:] == [kinds[name].value for name in names]


def test_the_hour_on_the_map_is_no_longer_than_an_hour(pages):
    text = (ROOT / "site" / "map.md").read_text(encoding="utf-8")
    hour = re.search(r"(?ms)^## An hour\n(.*?)^## ", text)[1]
    named = re.findall(r"\{exercise\}`(\w+)/(\w+)`", hour)
    cells = {c.id: c.source for lab, _ in named for c in notebook(lab).cells}
    minutes = [int(re.search(r"(\d+) minutes", cells[f"{e}-task"])[1]) for _, e in named]
    shown = "".join(t for _, t, _ in pages["map"].all("section"))
    assert f"{sum(minutes)} minutes" in shown
    assert sum(minutes) <= 60


def test_the_pages_have_the_packages_colours(site):
    css = (site / "_static" / "palette.css").read_text(encoding="utf-8")
    for kind, look in palette.KINDS.items():
        assert f"--pp-{kind}: {look.fill};" in css


@pytest.fixture
def shown(site, tmp_path):
    """A function from a page's name to its elements once its scripts have run, offline."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("chromium is not installed: apt install chromium")
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync"
    flags += " --disable-background-networking --disable-component-update --dump-dom"

    def show(name):
        own = [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000"]
        command = [chromium, *flags.split(), *own, f"file://{site}/{name}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        dom = tmp_path / "dom.html"
        dom.write_text(done.stdout, encoding="utf-8")
        return Page(dom)

    return show


def test_every_timeline_of_a_page_comes_alive(pages, shown):
    for name in ("index", f"labs/{NAMES[0]}"):
        waiting = len(list(pages[name].all("div", kind="pp-lab-timeline")))
        alive = [a for a, _, _ in shown(f"{name}.html").all("svg") if a.get("role") == "grid"]
        assert len(alive) == waiting > 0


def test_the_search_works_without_a_network(shown):
    results = shown("search.html?q=deadlock").all("a")
    found = [a["href"] for a, _, around in results if "ul.search" in around]
    assert "glossary.html#term-deadlock" in found and "labs/pp_lab.html" in found


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    command = [sys.executable, ROOT / "site" / "build.py", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "name another folder" in done.stdout
    assert (tmp_path / "thesis.txt").read_text() == "mine"
