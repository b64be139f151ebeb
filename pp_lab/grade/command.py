"""`python -m pp_lab.grade`: a folder of submissions in, marks and feedback out."""

import argparse
import json
import os
import re
import secrets
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import nbformat

from ..course.release import write
from ..schedule import LabError
from . import report
from .assemble import Course
from .grader import ROOT, Grader
from .service import Service


def main(argv=None) -> int:
    args = _arguments(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        courses = [Course(path) for path in _solutions()]
        if args.self:
            return _self(args, courses)
        return _grade(args, courses)
    except LabError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted: the same command goes on where this one stopped", file=sys.stderr)
        return 130


def _arguments(argv):
    parser = argparse.ArgumentParser(
        prog="python -m pp_lab.grade",
        description="Grade submissions of a lab: marks, reasons and feedback for each.",
    )
    parser.add_argument("submissions", nargs="*", type=Path, help="notebooks, or folders of them")
    parser.add_argument("--out", type=Path, default=Path("grades"), help="default: grades")
    parser.add_argument("--seed", help="of the hidden sizes; default: that of --out, else drawn")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1,
                        help="submissions graded at once; default: one per core")  # fmt: skip
    parser.add_argument("--timeout", type=float, default=30, help="seconds per check; default: 30")
    parser.add_argument("--extra", type=Path, help="a file with further checks, for graders only")
    parser.add_argument("--self", type=Path, metavar="NOTEBOOK",
                        help="grade your own notebook, and say what to do next")  # fmt: skip
    args = parser.parse_args(argv)
    if bool(args.self) == bool(args.submissions):
        parser.error("give submissions, or --self and a notebook")
    if args.jobs < 1 or args.timeout <= 0:
        parser.error("--jobs and --timeout must be positive")
    return args


def _solutions():
    for folder in (Path("solutions"), ROOT / "solutions"):
        if paths := sorted(folder.glob("*.ipynb")):
            return paths
    raise LabError(
        "there is no folder solutions/ with notebooks here: run this in the folder of pp_lab"
    )


def find(given):
    """{name: path} of submissions. In a folder, every notebook below it is one."""
    found = {}
    for path in given:
        if path.is_file():
            paths, base = [path], path.parent
        elif path.is_dir():
            paths = [p for p in path.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts]
            base = path
        else:
            raise LabError(f"{path}: there is no such file or folder")
        for p in sorted(paths):
            name = re.sub(r"[^\w.-]+", "-", p.relative_to(base).with_suffix("").as_posix())
            name = name.lstrip(".-") or "submission"
            number = 2
            while name in found:
                name, number = f"{name.rsplit('~', 1)[0]}~{number}", number + 1
            found[name] = p
    if not found:
        raise LabError("there is no notebook in " + ", ".join(map(str, given)))
    return found


def _grade(args, courses):
    submissions, out = find(args.submissions), args.out
    for folder in ("results", "feedback", "junit", "assembled"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    seed = _seed(args.seed, out)
    closed = [*(c.path.parent for c in courses), *args.submissions, out, args.extra]
    began = time.monotonic()
    results = {}
    with Service([m for c in courses for m in c.preload]) as service:
        grader = Grader(courses, service, seed, args.timeout, args.extra, closed, out / "junit")
        data = {}
        for name, path in submissions.items():
            try:
                data[name] = path.read_bytes()
            except OSError as error:
                data[name] = b""
                print(f"{path}: {error}", file=sys.stderr)
        todo = []
        for name, content in data.items():
            old = _old(out, name, digest := grader.digest(content))
            if old is None:
                todo.append((name, content, digest))
            else:
                results[name] = old
        if results:
            print(f"{len(results)} of {len(submissions)} were graded before, with the same result")
        pool = ThreadPoolExecutor(args.jobs)
        try:
            futures = [pool.submit(_one, grader, out, *job) for job in todo]
            progress = report.Progress(len(todo))
            for future in as_completed(futures):
                result = future.result()
                results[result["submission"]] = result
                progress.show(result)
            progress.done()
        finally:
            grader.stop()
            pool.shutdown(wait=True, cancel_futures=True)
    ordered = [results[name] for name in submissions]
    write(out / "grades.csv", report.csv_of(ordered))
    write(out / "grades.json", json.dumps({"seed": seed, "results": ordered}, indent=1) + "\n")
    print(report.table(ordered))
    print(f"seed {seed}; {len(todo)} graded in {time.monotonic() - began:.0f} s; marks in "
          f"{out / 'grades.csv'}, a page for each learner in {out / 'feedback'}")  # fmt: skip
    return int(any(result["error"] for result in ordered))


def _one(grader, out, name, data, digest):
    """Grade one submission and write its files; the result comes last, so that it says that
    all of them are there."""
    result, course, assembled = grader.grade(name, data)
    if grader.ending:
        raise LabError(f"{name} was interrupted")
    result["digest"] = digest
    if assembled is not None:
        write(out / "assembled" / f"{name}.ipynb", nbformat.writes(assembled.notebook) + "\n")
    write(out / "feedback" / f"{name}.html", report.feedback(result, course, assembled))
    for exercise in result["exercises"].values():
        exercise.pop("figure", None)
    write(out / "results" / f"{name}.json", json.dumps(result, indent=1) + "\n")
    return result


def _old(out, name, digest):
    """The result of an earlier run, if it is of the same submission under the same conditions."""
    try:
        result = json.loads((out / "results" / f"{name}.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return result if result.get("digest") == digest and not result["error"] else None


def _seed(given, out):
    """The seed of the hidden sizes. It is kept, so that an interrupted grading goes on with it."""
    path = out / "seed"
    seed = given or (path.read_text().strip() if path.exists() else secrets.token_hex(4))
    write(path, f"{seed}\n")
    return seed


def _self(args, courses):
    if not args.self.is_file():
        raise LabError(f"{args.self}: there is no such notebook")
    data = args.self.read_bytes()
    with Service([m for c in courses for m in c.preload]) as service:
        closed = [c.path.parent for c in courses]
        seed = args.seed or secrets.token_hex(4)
        grader = Grader(courses, service, seed, args.timeout, args.extra, closed)
        try:
            result, *_ = grader.grade(args.self.stem, data)
        finally:
            grader.stop()
    print(report.for_oneself(result))
    return int(bool(result["error"]))
