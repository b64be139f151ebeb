"""`python -m pp_lab.release`: labs/ from solutions/, so that every lab is written once.

What happens to a cell is what nbgrader's `generate_assignment` does, so a course that uses
nbgrader can take the solutions as its source:

    ### BEGIN SOLUTION … ### END SOLUTION           becomes the stub, indented as it stood
    a solution cell without such a region           becomes the stub as a whole
    ### BEGIN HIDDEN TESTS … ### END HIDDEN TESTS   vanishes

Beyond that, outputs, execution counts, run times and widget state go, and all else stays:
cell ids, nbgrader's metadata and our own `pp_lab` block. The same solution always gives the
same bytes. Needs nbformat, not torch.
"""

import argparse
import copy
import json
import os
import re
from pathlib import Path

import nbformat

from ..schedule import LabError

STUB = {"code": "# YOUR CODE HERE\nraise NotImplementedError()", "markdown": "YOUR ANSWER HERE"}
# Written by whoever ran or last viewed the notebook.
CELL_TRACES = ("collapsed", "scrolled", "execution", "ExecuteTime")
NOTEBOOK_TRACES = ("widgets", "celltoolbar", "signature")


class ReleaseError(LabError):
    """A solution that cannot be released; the text names notebook, cell and reason."""


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m pp_lab.release",
        description="Write labs/*.ipynb from solutions/*.ipynb, over what is there.",
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if a lab is out of date"
    )
    check = parser.parse_args(argv).check
    try:
        texts = release_all(Path("solutions"))
        stale = [lab for lab, text in texts.items() if not lab.exists() or read(lab) != text]
        if not check:
            for lab in stale:
                write(lab, texts[lab])
    except ReleaseError as error:
        print(error)
        return 1
    for lab in stale:
        print(f"{lab} is out of date: run python -m pp_lab.release" if check else f"wrote {lab}")
    if not stale:
        print(f"{len(texts)} labs, all up to date")
    return int(check and bool(stale))


def release_all(solutions: Path) -> dict[Path, str]:
    """The text of every lab, by its path in labs/, which is beside `solutions`."""
    paths = sorted(solutions.glob("*.ipynb"))
    if not paths:
        raise ReleaseError(
            f"there is no notebook in {solutions.absolute()}: run this in the folder that holds "
            "solutions/ and labs/"
        )
    return {solutions.parent / "labs" / path.name: release_file(path) for path in paths}


def release_file(path: Path) -> str:
    """The text of the lab that belongs to one solved notebook."""
    try:
        text = read(path)
        # Before nbformat reads it, which would mend ids with random ones.
        ids = [cell["id"] for cell in json.loads(text)["cells"]]
        if len(set(ids)) < len(ids):
            raise ReleaseError(f"{path}: two cells have the same id; give one of them another")
        notebook = nbformat.reads(text, as_version=nbformat.NO_CONVERT)
        nbformat.validate(notebook)
    except (ValueError, KeyError, TypeError, nbformat.ValidationError) as error:
        raise ReleaseError(
            f"{path} is not a notebook of format 4.5 (with an id in every cell): open and save it "
            f"in JupyterLab. Reason: {type(error).__name__}: {str(error).splitlines()[0]}"
        ) from None
    return nbformat.writes(release(notebook, str(path))) + "\n"


def release(notebook, name: str):
    """The lab that belongs to a solved notebook. `name` is for error messages."""
    lab = copy.deepcopy(notebook)
    drop(lab.metadata, NOTEBOOK_TRACES)
    drop(lab.metadata.get("language_info", {}), ["version"])
    for number, cell in enumerate(lab.cells):
        role = cell.metadata.get("nbgrader", {})
        where = f"{name}, cell {number} ({role.get('grade_id') or cell.id})"
        cell.source = released_source(cell.source, cell.cell_type, role, where)
        drop(cell.metadata, CELL_TRACES)
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return lab


def released_source(source: str, cell_type: str, role: dict, where: str) -> str:
    """What a learner gets to see of a cell. `role` is the cell's nbgrader metadata."""
    stub = STUB.get(cell_type, STUB["markdown"]).split("\n")
    source, solved = replace_region(source, "SOLUTION", stub, where)
    if solved and not role.get("solution"):
        raise ReleaseError(
            f'{where}: it has a solution region, but is no solution cell: set "solution": true in '
            "its nbgrader metadata"
        )
    if role.get("solution") and not solved:
        source = "\n".join(stub)
    source, hidden = replace_region(source, "HIDDEN TESTS", [], where)
    if hidden and not role.get("grade"):
        raise ReleaseError(
            f'{where}: it has hidden tests, but is no graded cell: set "grade": true in its '
            "nbgrader metadata"
        )
    return source


def replace_region(source: str, region: str, stub: list[str], where: str) -> tuple[str, bool]:
    """Put `stub` in the place of each region; also says whether there was one."""
    begin, end = f"BEGIN {region}", f"END {region}"
    kept, found, opened = [], False, None
    for number, line in enumerate(source.split("\n"), start=1):
        if begin in line:
            if opened:
                raise ReleaseError(
                    f"{where}, line {number}: {begin} inside the region that line {opened} begins; "
                    f"put ### {end} between them"
                )
            opened, found = number, True
            indent = re.match(r"\s*", line)[0]
            kept += [indent + text for text in stub]
        elif end in line:
            if not opened:
                raise ReleaseError(
                    f"{where}, line {number}: {end} without a {begin} above it; add ### {begin}"
                )
            opened = None
        elif not opened:
            kept.append(line)
    if opened:
        raise ReleaseError(
            f"{where}, line {opened}: {begin} without an end in this cell; add ### {end}"
        )
    return "\n".join(kept), found


def drop(metadata, keys):
    """Remove the keys that are there."""
    for key in keys:
        metadata.pop(key, None)


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def write(path: Path, text: str) -> None:
    """Whole or not at all: whoever reads meanwhile sees the old file or the new one."""
    path.parent.mkdir(exist_ok=True)
    new = path.with_name(path.name + ".new")
    try:
        new.write_text(text, encoding="utf-8", newline="\n")
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)
