"""From a submission to what is graded: the solution's cells, with the learner's answers in them.

Only the *source of the answer cells* is taken from the learner. An answer cell is found by its
grade_id, else by its cell id, else by the functions that it defines. All else that the learner
changed has no effect, and is remarked upon.
"""

import ast
import json
import re
from collections import Counter
from dataclasses import dataclass, field

import nbformat

from ..course.release import release
from ..schedule import LabError

LONGEST = 64 << 20  # bytes of a submission


class SubmissionError(LabError):
    """A submission in which there is nothing to grade; the text says why."""


@dataclass(frozen=True)
class Exercise:
    """One check of a lab: its name, title and points, its source, and its answer cells' names."""

    name: str
    title: str
    points: float
    check: str
    answers: tuple


class Course:
    """A solved notebook, as that which submissions are held against."""

    def __init__(self, path):
        self.path = path
        self.solution = nbformat.read(path, as_version=4)
        self.lab = release(self.solution, str(path))
        self.exercises = list(self._exercises())
        self.imports = "\n".join(
            c.source for c in self.lab.cells if c.cell_type == "code" and _only_imports(c)
        )
        if not self.exercises:
            raise LabError(f"{path} has no check cells, so there is nothing to grade")

    def _exercises(self):
        title, answers = "", {}
        for cell in self.lab.cells:
            ours = cell.metadata.get("pp_lab", {})
            heading = re.search(r"^#+ *(Exercise .*)$", cell.source, re.MULTILINE)
            if cell.cell_type == "markdown" and heading:
                title = heading[1]
            elif ours.get("role") == "answer":
                answers.setdefault(ours["exercise"], []).append(name_of(cell))
            elif ours.get("role") == "check":
                name, points = ours["exercise"], cell.metadata.nbgrader.points
                found = tuple(answers.get(name, ()))
                yield Exercise(name, title or name, points, cell.source, found)

    @property
    def answer_cells(self):
        return [c for c in self.lab.cells if c.metadata.get("pp_lab", {}).get("role") == "answer"]

    @property
    def preload(self):
        """The modules of checks that the lab imports."""
        nodes = [n for n in ast.parse(self.imports).body if isinstance(n, ast.ImportFrom)]
        return [f"{n.module}.{a.name}" for n in nodes if n.module == "pp_lab.course"
                for a in n.names]  # fmt: skip


@dataclass
class Assembled:
    """What is graded. notebook: every cell, with the learner's answers; answers: {name: source}"""

    notebook: object
    answers: dict
    remarks: list = field(default_factory=list)

    def sources(self, exercise, course):
        """Pairs (name, source): the answers up to an exercise, its own last."""
        names = [name_of(cell) for cell in course.answer_cells]
        last = max((names.index(n) for n in exercise.answers), default=-1)
        return [(n, self.answers[n]) for n in names[: last + 1] if n in self.answers]


@dataclass
class _Cell:
    number: int
    kind: str
    id: str
    grade_id: str
    tags: list
    source: str


def name_of(cell):
    return cell.metadata.get("nbgrader", {}).get("grade_id") or cell.id


def assemble(course, data):
    """An `Assembled` from the bytes of a submission. Raises SubmissionError."""
    cells = _cells(data)
    notebook = nbformat.from_dict(json.loads(json.dumps(course.lab)))
    answers, remarks, taken = {}, [], {}
    for cell in notebook.cells:
        if cell.metadata.get("pp_lab", {}).get("role") == "answer":
            found, said = _find(cell, [c for c in cells if c.number not in taken])
            remarks += said
            if found is not None:
                taken[found.number] = cell
                answers[name_of(cell)] = cell.source = found.source
    remarks += _other_changes(course, cells, taken)
    for name, source in answers.items():
        remarks += [f"answer cell {name}: {text}" for text in _habits(source)]
    return Assembled(notebook, answers, remarks)


def best_course(courses, data):
    """The course of whose answer cells a submission has most."""
    cells = _cells(data)

    def shared(course):
        return sum(bool(_candidates(cell, cells)) for cell in course.answer_cells)

    best = max(courses, key=shared)
    if not shared(best):
        raise SubmissionError("none of the answer cells of any lab is in it")
    return best


def _cells(data):
    if len(data) > LONGEST:
        raise SubmissionError(f"it has {len(data) >> 20} MiB; {LONGEST >> 20} are the most")
    try:
        content = json.loads(data.decode("utf-8-sig"))
        cells = content.get("cells")
        if cells is None:
            cells = [c for sheet in content["worksheets"] for c in sheet["cells"]]
        return [_cell(number, cell) for number, cell in enumerate(cells)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SubmissionError(f"it is not a notebook ({type(error).__name__}: {error})") from None


def _cell(number, cell):
    metadata = cell.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    grading = metadata.get("nbgrader")
    grade_id = grading.get("grade_id") if isinstance(grading, dict) else None
    tags = metadata.get("tags")
    source = cell.get("source", cell.get("input", ""))
    if isinstance(source, list):
        source = "".join(map(str, source))
    return _Cell(number, str(cell.get("cell_type")), str(cell.get("id")), str(grade_id),
                 tags if isinstance(tags, list) else [], str(source))  # fmt: skip


def _candidates(cell, cells):
    """(defines the functions, has the grade_id, has the id, cell) for cells that may be it."""
    wanted = defined(cell.source)
    found = []
    for c in cells:
        marks = (bool(wanted) and wanted <= defined(c.source), c.grade_id == name_of(cell),
                 c.id == cell.id)  # fmt: skip
        if any(marks):
            found.append((*marks, c))
    return found


def _find(cell, cells):
    """The learner's version of an answer cell, or None; and remarks on it."""
    name, found = name_of(cell), _candidates(cell, cells)
    if not found:
        return None, [f"answer cell {name} is missing"]

    def merit(candidate):
        defines, grade_id, same_id, c = candidate
        written = c.source.strip() != cell.source.strip()
        return defines, grade_id, written and grade_id, same_id, written, -c.number

    defines, grade_id, same_id, best = max(found, key=merit)
    remarks = []
    twins = sum(g or i for _, g, i, _ in found)
    if twins > 1:
        remarks.append(f"answer cell {name} is there {twins} times: cell {best.number} was taken")
    if not grade_id:
        how = "its cell id" if same_id else "the functions that it defines"
        remarks.append(f"answer cell {name} has lost its metadata: found by {how}")
    if best.kind != "code":
        remarks.append(f"answer cell {name} was made a {best.kind} cell: graded as code")
    if best.tags:
        remarks.append(
            f"answer cell {name} has tags without effect: {', '.join(map(str, best.tags))}"
        )
    return best, remarks


def _other_changes(course, cells, taken):
    """What differs outside the answers."""
    remarks = []
    order = [taken[c.number].id for c in cells if c.number in taken]
    if order != [c.id for c in course.answer_cells if c.id in order]:
        remarks.append("answer cells were moved: graded in the lab's order")
    rest = [c for c in cells if c.number not in taken]
    ids = Counter(c.id for c in rest)
    answer_ids = {c.id for c in course.answer_cells}
    others = {c.id: c for c in course.lab.cells if c.id not in answer_ids}
    theirs = {c.id: c for c in rest}
    tagged = twice = 0
    for id, cell in others.items():
        check = cell.metadata.get("pp_lab", {}).get("role") == "check"
        if id not in theirs:
            if cell.cell_type == "code":
                remarks.append(f"{'check ' * check}cell {id} is missing: the lab's own was used")
            continue
        if theirs[id].source != cell.source and cell.cell_type == "code":
            remarks.append(f"{'check ' * check}cell {id} was changed: the lab's own was used")
        twice += ids[id] > 1
        tagged += bool(set(map(str, theirs[id].tags)) - set(cell.metadata.get("tags", ())))
    if twice:
        remarks.append(f"other cells that are there more than once: {twice}")
    if tagged:
        remarks.append(f"other cells with tags, which have no effect: {tagged}")
    added = [c for c in rest if c.id not in others and c.kind == "code" and c.source.strip()]
    if added:
        remarks.append(
            f"{len(added)} cell{'s' * (len(added) > 1)} added, not graded: what an answer needs, "
            "functions and imports, belongs into its answer cell"
        )
    return remarks


def _habits(source):
    """What an instructor may want to look at in an answer."""
    if re.search(r"^[ \t]*[%!]", source, re.MULTILINE):
        yield "lines with % or ! were left out"
    if re.search(r"\bschedules\s*\.\s*\w|\bpublished_chart\b", source):
        yield "it calls the library's own schedules"


def defined(source):
    """The names of the functions that a cell defines at its top."""
    return set(re.findall(r"^(?:async\s+)?def\s+(\w+)", source, re.MULTILINE))


def _only_imports(cell):
    try:
        body = ast.parse(cell.source).body
    except SyntaxError:
        return False
    return bool(body) and all(isinstance(n, (ast.Import, ast.ImportFrom)) for n in body)
