"""The course as pages: `make site`, or `python site/build.py FOLDER`.

Everything comes from what is there: the labs from solutions/, with the outputs saved in them
(nothing is run), the stubs from the release, the questions from README.md, the picture of who
needs whom from each lab's first cell. The handwritten pages beside this file hold marks that
are filled in here:

    <!-- name -->             one of the `PARTS` below
    {lab}`NAME`               a link to the lab solutions/NAME.ipynb
    {exercise}`NAME/ID`       a link to one of its exercises, with its minutes
    <!-- README: HEADING -->  what stands in README.md under that heading
    <!-- minutes -->          the minutes of all exercises named in the section around it
"""

import argparse
import html
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import nbformat

import pp_lab as pp
from pp_lab import Cost, schedules, simulate
from pp_lab.course import release
from pp_lab.show import palette

HERE = Path(__file__).parent
ROOT = HERE.parent
FIRST = "pp_lab"
HEADING = re.compile(r"### Exercise (\d+) · (.+) · (\w+) · (\d+) minutes · (\d+) points?")


class Exercise(NamedTuple):
    id: str
    number: int
    title: str
    level: str
    minutes: int
    points: int


def exercise_of(cell) -> Exercise | None:
    """The exercise that a text cell sets, if it sets one."""
    match = HEADING.match(cell.source)
    if match is None:
        return None
    number, title, level, minutes, points = match.groups()
    name = cell.id.removesuffix("-task")
    return Exercise(name, int(number), title, level, int(minutes), int(points))


class Lab:
    """One notebook of solutions/ and what its own cells say about it."""

    def __init__(self, path: Path):
        self.name = path.stem
        self.path = path
        self.solution = nbformat.read(path, as_version=4)
        self.released = nbformat.reads(release.release_file(path), as_version=4)
        self.opening = self.solution.cells[0].source
        number, self.title = self.told(r"\A# Lab (\d+) · (.+)")
        before, claim = self.told(r"(?m)^(.*)\*\*The claim of this lab:\*\* (.+)")
        (minutes,) = self.told(r"(\d+) minutes")
        self.number, self.minutes = int(number), int(minutes)
        self.claim = before + capital(claim)

    def told(self, pattern):
        """What the first cell says."""
        match = re.search(pattern, self.opening)
        if match is None:
            raise SystemExit(f"{self.path}: there is no {pattern!r} in the first cell")
        return match.groups()

    @cached_property
    def needs(self) -> list[int]:
        """Numbers of the labs that the first cell sends you to; if it is silent, of the earlier
        labs that its text names, or else of the first."""
        told = re.findall(r"\bLabs? [^.]*", self.opening.partition("\n")[2])
        numbers = {int(n) for sentence in told for n in re.findall(r"\b\d+\b", sentence)}
        if not numbers:
            texts = [c.source for c in self.solution.cells[1:] if c.cell_type == "markdown"]
            numbers = {int(n) for text in texts for n in re.findall(r"\b[Ll]ab (\d+)\b", text)}
        earlier = sorted(n for n in numbers if n < self.number)
        return earlier or ([1] if self.number > 1 else [])

    @cached_property
    def exercises(self) -> list[Exercise]:
        texts = [cell for cell in self.solution.cells if cell.cell_type == "markdown"]
        return list(filter(None, map(exercise_of, texts)))

    @property
    def points(self) -> int:
        """As nbgrader counts them."""
        return sum(
            cell.metadata.get("nbgrader", {}).get("points", 0) for cell in self.released.cells
        )

    @property
    def link(self) -> str:
        return f"[Lab {self.number}](/labs/{self.name}.ipynb)"

    @cached_property
    def table_row(self) -> tuple[str, str]:
        """What you write and what you find out, as README.md says it."""
        for line in release.read(ROOT / "README.md").splitlines():
            if line.startswith(f"| [`labs/{self.name}.ipynb`]"):
                return tuple(cell.strip() for cell in line.strip("| ").split(" | ")[1:3])
        return "–", self.claim  # a lab that is being written


def read_labs(folder: Path = ROOT / "solutions") -> list[Lab]:
    """All labs, in their order: by name, with the first lab first."""
    return sorted(map(Lab, folder.glob("*.ipynb")), key=lambda lab: (lab.name != FIRST, lab.name))


# The page of a lab


def page(lab: Lab, labs: list[Lab]):
    """The solution as a page: stubs in sight, solutions behind a click, outputs as saved."""
    cells = []
    for solved, released in zip(lab.solution.cells, lab.released.cells, strict=True):
        if solved.cell_type == "markdown":
            cells.append(text_cell(solved.id, reading(solved, lab, labs)))
            if not cells[1:]:
                cells.append(text_cell("card", card(lab, labs)))
            continue
        tags = []
        if released.source != solved.source and "### BEGIN SOLUTION" in solved.source:
            stub = f"```{{code-block}} python\n:class: stub\n\n{released.source}\n```"
            cells.append(text_cell(f"{solved.id}-stub", stub))
            tags = ["hide-input"]
        cell = nbformat.v4.new_code_cell(
            without_markers(solved.source) if tags else released.source,
            id=solved.id,
            metadata={"tags": tags},
            outputs=[output for output in solved.outputs if worth_showing(output)],
            execution_count=solved.execution_count,
        )
        cells.append(cell)
    return nbformat.v4.new_notebook(
        cells=cells,
        metadata={
            "kernelspec": lab.solution.metadata.kernelspec,
            "language_info": lab.solution.metadata.language_info,
        },
    )


def text_cell(name, source):
    return nbformat.v4.new_markdown_cell(source, id=name)


def without_markers(source):
    lines = source.split("\n")
    return "\n".join(line for line in lines if line.strip() not in MARKERS)


MARKERS = ("### BEGIN SOLUTION", "### END SOLUTION")


def worth_showing(output):
    """Not the note that a first run takes a second longer."""
    return not (output.output_type == "stream" and "starting the rank server" in output.text)


def reading(cell, lab, labs):
    """A text cell, with "lab 3" as a link, and a label where an exercise begins."""
    text = "\n".join(link_labs(line, lab, labs) for line in cell.source.split("\n"))
    exercise = exercise_of(cell)
    if exercise:  # its title short, for the page's outline
        points = "1 point" if exercise.points == 1 else f"{exercise.points} points"
        text = (
            f"({lab.name}-{exercise.id})=\n### Exercise {exercise.number} · {exercise.title}\n\n"
            f"*{exercise.level} · {exercise.minutes} minutes · {points}*\n"
            f"{text.partition(chr(10))[2]}"
        )
    return text


def link_labs(line, lab, labs):
    by_number = {other.number: other.name for other in labs if other is not lab}

    def link(match):
        name = by_number.get(int(match[1]))
        return f"[{match[0]}](/labs/{name}.ipynb)" if name else match[0]

    if line.startswith(("#", "<", "|")):
        return line
    # What stands in backticks or is a link already stays as it is.
    parts = re.split(r"(`[^`]*`|!?\[[^\]]*\]\([^)]*\))", line)
    parts[::2] = [re.sub(r"\b[Ll]ab (\d+)\b", link, part) for part in parts[::2]]
    return "".join(parts)


def card(lab, labs):
    needs = [other.link for other in labs if other.number in lab.needs]
    return (
        f":::{{admonition}} {len(lab.exercises)} exercises · {lab.minutes} minutes · "
        f"{lab.points} points\n:class: card\n"
        + (f"Comes after {' and '.join(needs)}. " if needs else "")
        + "This is the solved lab. Try each exercise before you open its solution.\n\n"
        f"To write and run it yourself, open `labs/{lab.name}.ipynb` in JupyterLab "
        f"([how](/start.md)). The {{download}}`unsolved notebook </notebooks/{lab.name}.ipynb>` "
        "is that same file.\n:::"
    )


# The parts of the handwritten pages


def contents(labs):
    pages = "\n".join(f"labs/{lab.name}" for lab in labs)
    return (
        "```{toctree}\n:hidden:\n:caption: The labs\n\n" + pages + "\n```\n\n"
        "```{toctree}\n:hidden:\n:caption: Around them\n\nstart\nmap\ntour\nglossary\n```"
    )


def figures(labs):
    """How much there is, in a sentence."""
    exercises, minutes = sum(len(lab.exercises) for lab in labs), sum(lab.minutes for lab in labs)
    points = sum(lab.points for lab in labs)
    return f"{len(labs)} labs, {exercises} exercises, {points} points, {hours(minutes)}."


def hours(minutes):
    return f"about {round(minutes / 60)} hours"


def lab_table(labs):
    rows = [
        f"| [{lab.number} · {lab.title}](/labs/{lab.name}.ipynb) | {capital(lab.claim)} "
        f"| {len(lab.exercises)} | {lab.points} | {lab.minutes} |"
        for lab in labs
    ]
    return table("labs", ("lab", "its claim", "exercises", "points", "minutes"), rows)


def table(kind, heads, rows):
    rule = "|" + "---|" * len(heads)
    return "\n".join(
        [f":::{{table}}\n:class: {kind}", "", f"| {' | '.join(heads)} |", rule, *rows, ":::"]
    )


def capital(text):
    return text[0].upper() + text[1:]


def needs_table(labs):
    links = {lab.number: lab.link for lab in labs}
    rows = [
        f"| [{lab.number} · {lab.title}](/labs/{lab.name}.ipynb) "
        f"| {', '.join(links[n] for n in lab.needs if n in links) or 'nothing'} "
        f"| {lab.table_row[1]} | {lab.table_row[0]} |"
        for lab in labs
    ]
    return table("needs", ("lab", "needs", "what you find out", "what you write"), rows)


def level(lab, labs):
    """How many labs stand in a row before this one."""
    before = [level(other, labs) for other in labs if other.number in lab.needs]
    return 1 + max(before) if before else 0


LEVELS = (palette.KINDS["B"].fill, palette.KINDS["F"].fill, palette.KINDS["I"].fill)


def map_picture(labs):
    """A line of labs, and an arc from each lab to those that need it."""
    step, gutter, width = 58, 118, 440
    y = {lab.number: 34 + step * k for k, lab in enumerate(labs)}
    arcs, rows = [], []
    for lab in labs:
        for need in lab.needs:
            if need in y:
                reach = min(gutter - 34, 16 + (y[lab.number] - y[need]) / 5.2)
                a, b, x = y[need], y[lab.number], gutter - 21
                kind = "far" if level(lab, labs) > 1 else "near"
                arcs.append(
                    f'<path class="{kind}" d="M{x},{a + 5} C{x - reach:.0f},{a + 12} '
                    f'{x - reach:.0f},{b - 12} {x - 4},{b - 3}"/>'
                    f'<path class="{kind} tip" d="M{x},{b} l-10,-7 l2,10 z"/>'
                )
        colour = LEVELS[min(level(lab, labs), 2)]
        lines = textwrap.wrap(lab.title, 38, break_on_hyphens=False)
        top = y[lab.number] - 8 * len(lines) + 4
        words = "".join(
            f'<tspan x="{gutter + 24}" y="{top + 18 * k}">{html.escape(line)}</tspan>'
            for k, line in enumerate(lines)
        )
        rows.append(
            f'<a href="labs/{lab.name}.html"><circle cx="{gutter}" cy="{y[lab.number]}" r="17" '
            f'fill="{colour}"/><text class="number" x="{gutter}" y="{y[lab.number] + 5}">'
            f'{lab.number}</text><text class="title">{words}</text><text class="minutes" '
            f'x="{gutter + 24}" y="{top + 18 * len(lines)}">{len(lab.exercises)} exercises, '
            f"{lab.minutes} minutes</text></a>"
        )
    told = "; ".join(
        f"lab {lab.number} needs {' and '.join(map(str, lab.needs)) or 'nothing'}" for lab in labs
    )
    height = 34 + step * len(labs)
    return (
        f'<svg class="map" viewBox="0 0 {width} {height}" role="group" '
        f'aria-label="The labs and what they need: {told}.">{"".join(arcs + rows)}</svg>'
    )


def first_picture(labs):
    """The same timelines as on the first page of README.md, alive."""
    cost = Cost(F=1, B=2)
    both = [simulate(make(p=4, m=8), cost) for make in (schedules.gpipe, schedules.one_f_one_b)]
    return f"````{{raw}} html\n{pp.stack(*both).html}\n````"


def bubble_table(labs, p=4, m=8):
    """One step, measured with each definition of the bubble that is in use."""
    rows = []
    cost = Cost(F=1, B=2)
    for make in (schedules.gpipe, schedules.one_f_one_b, schedules.zb_h1, schedules.zb_h2):
        t = simulate(make(p, m), cost)
        work, idle = m * (cost.F + cost.B), max(t.idle)
        rows.append(
            f"| {t.schedule.name} | {t.makespan} | {t.span} | {float(t.bubble):.1%} "
            f"| {idle / work:.1%} | {(t.span - work) / t.span:.1%} | {idle} |"
        )
    heads = (
        "schedule", "makespan", "span", "idle over all time", "idle over work",
        "(span − work) over span", "idle time of a rank",
    )  # fmt: skip
    return table("bubbles", heads, rows)


PARTS = {
    "contents": contents,
    "figures": figures,
    "the labs": lab_table,
    "who needs what": needs_table,
    "the map": map_picture,
    "first picture": first_picture,
    "bubbles": bubble_table,
}


def fill(text: str, labs: list[Lab]) -> str:
    """A handwritten page with its marks filled in."""
    by_name = {lab.name: lab for lab in labs}
    text = "\n\n".join(filter(None, (without_absent(t, by_name) for t in text.split("\n\n"))))

    def exercise(match):
        lab, wanted = by_name[match[1]], match[2]
        found = next((e for e in lab.exercises if e.id == wanted), None)
        if found is None:
            raise SystemExit(f"{lab.path} has no exercise {wanted}, but {match[0]} leads there")
        return (
            f"[Lab {lab.number}, exercise {found.number} · {found.title}](#{lab.name}-{wanted}), "
            f"{found.minutes} minutes"
        )

    text = re.sub(r"\{lab\}`(\w+)`", lambda match: by_name[match[1]].link, text)
    text = re.sub(r"\{exercise\}`(\w+)/(\w+)`", exercise, text)
    sections = re.split(r"(?m)^(?=## )", text)
    for k, section in enumerate(sections):
        minutes = sum(map(int, re.findall(r"\]\(#\w+-\w+\), (\d+) minutes", section)))
        sections[k] = section.replace("<!-- minutes -->", str(minutes))
    text = re.sub(r"<!-- README: (.+?) -->", readme_section, "".join(sections))
    return re.sub(r"<!-- (.+?) -->", lambda match: PARTS[match[1]](labs), text)


def without_absent(block: str, names) -> str:
    """A paragraph without what leads to a lab that is not there: it, or items of its list."""

    def here(text):
        return all(name in names for name in re.findall(r"\{(?:lab|exercise)\}`(\w+)", text))

    if block.startswith("- "):
        return "\n".join(filter(here, block.split("\n")))
    return block if here(block) else ""


def readme_section(match):
    """What stands in README.md under a heading."""
    readme = release.read(ROOT / "README.md")
    return re.search(rf"(?ms)^## {match[1]}\n(.*?)(?=^## |\Z)", readme)[1].strip()


# The whole


def assemble(source: Path):
    """Everything that Sphinx reads, in one folder."""
    labs = read_labs()
    shutil.copytree(HERE, source, ignore=shutil.ignore_patterns("build.py", "__pycache__"))
    shutil.copytree(ROOT / "assets", source / "assets")
    for folder in ("labs", "notebooks"):
        (source / folder).mkdir()
    for lab in labs:
        nbformat.write(page(lab, labs), source / "labs" / f"{lab.name}.ipynb")
        nbformat.write(lab.released, source / "notebooks" / f"{lab.name}.ipynb")
    for path in source.glob("*.md"):
        release.write(path, fill(release.read(path), labs))
    release.write(source / "static" / "palette.css", palette_css())
    release.write(source / "static" / "logo.svg", logo())


def palette_css():
    """The package's colours, for the style sheet beside this file."""
    colours = {f"--pp-{kind}": look.fill for kind, look in palette.KINDS.items()}
    colours |= {"--pp-memory": palette.MEMORY, "--pp-mark": palette.MARK}
    return ":root {" + " ".join(f"{name}: {colour};" for name, colour in colours.items()) + "}\n"


def logo():
    """1F1B on three ranks."""
    trace = simulate(schedules.one_f_one_b(p=3, m=3), Cost(F=1, B=2))
    boxes = "".join(
        f'<rect x="{6 * event.start + 0.5}" y="{14 * event.rank + 1}" rx="1" '
        f'width="{6 * (event.end - event.start) - 1}" height="12" '
        f'fill="{palette.KINDS[event.op.kind].fill}"/>'
        for event in trace.events
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {6 * trace.makespan} 42" '
        f'width="{6 * trace.makespan}" height="42">{boxes}</svg>\n'
    )


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description="Render the course into FOLDER.")
    parser.add_argument("folder", type=Path, help="gets index.html and all else; is made anew")
    folder = parser.parse_args(argv).folder
    if folder.exists() and any(folder.iterdir()) and not (folder / "searchindex.js").exists():
        print(f"{folder} holds something else than this site: name another folder")
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        source, made = Path(scratch) / "source", Path(scratch) / "site"
        assemble(source)
        sphinx = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-j", "2"]
        done = subprocess.run([*sphinx, "-d", f"{scratch}/doctrees", source, made])
        if done.returncode:
            return done.returncode
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(
            made, folder, ignore=shutil.ignore_patterns(".buildinfo", "objects.inv", "_sources")
        )
    print(f"open {folder / 'index.html'} in a browser")
    return 0


if __name__ == "__main__":
    sys.exit(main())
