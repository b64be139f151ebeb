"""The grader on notebooks that learners did things to, and on a hundred submissions.

    python benchmarks/grading.py abuse      kind, marks expected, marks given
    python benchmarks/grading.py hundred    seconds for 100 submissions of the first lab

Both run `python -m pp_lab.grade` as an instructor would, in a folder of their own. Of the
hundred, 60 have every exercise solved, 10 each none, 3, 5 and 8 of them, and 20 of all get two
answers wrong.
"""

import argparse
import copy
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import abuse  # noqa: E402 - lies beside the tests that hold the grader to it

WRONG = {
    "bubble": "def bubble(p, m):\n    return (p - 1) / m",
    "gpipe": (
        "def gpipe(rank):\n    for i in range(rank.microbatches):\n"
        "        rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))\n"
        "        rank.send_backward(i, rank.backward(i, rank.recv_backward(i)))"
    ),
}


def grade(folder, jobs):
    """Results by name, and the seconds that it took."""
    command = [sys.executable, "-m", "pp_lab.grade", "submitted", "--seed", "1", "--jobs", jobs]
    began = time.monotonic()
    subprocess.run(command, cwd=folder, stdout=sys.stderr, stderr=subprocess.STDOUT)
    results = json.loads((folder / "grades" / "grades.json").read_text("utf-8"))["results"]
    return {r["submission"]: r for r in results}, time.monotonic() - began


def show_abuse(folder, jobs):
    abuse.write_all(folder)
    results, _ = grade(folder, jobs)
    wrong = 0
    print("| kind | expected | given |\n|---|---|---|")
    for kind, (_, expected) in abuse.KINDS.items():
        given = {n: e["points"] for n, e in results[abuse.slug(kind)]["exercises"].items()}
        wrong += given != expected
        print(f"| {kind} | {_row(expected)} | {_row(given)} |" + " differs" * (given != expected))
    print(f"{len(abuse.KINDS)} kinds, {wrong} with other marks than expected")
    return wrong


def _row(points):
    return " ".join(f"{value:g}" for value in points.values())


def show_hundred(folder, jobs):
    (folder / "submitted").mkdir()
    lab = json.loads((ROOT / "labs" / "pp_lab.ipynb").read_text("utf-8"))
    solved = {cell["id"]: cell["source"] for cell in abuse.SOLVED["cells"]}
    order = [
        cell["metadata"]["pp_lab"]["exercise"]
        for cell in lab["cells"]
        if cell["metadata"].get("pp_lab", {}).get("role") == "answer"
    ]
    for k in range(100):
        notebook, done = copy.deepcopy(lab), [len(order)] * 6 + [0, 3, 5, 8]
        for cell in notebook["cells"]:
            mine = cell["metadata"].get("pp_lab", {})
            if mine.get("role") == "answer":
                name = mine["exercise"]
                if order.index(name) < done[k % 10]:
                    cell["source"] = solved[cell["id"]]
                if k % 5 == 1 and name in WRONG:
                    cell["source"] = WRONG[name]
        path = folder / "submitted" / f"learner{k:03}.ipynb"
        path.write_text(json.dumps(notebook), "utf-8")
    results, seconds = grade(folder, jobs)
    failed = sum(bool(r["error"]) for r in results.values())
    print(f"{len(results)} submissions, {failed} not graded, in {seconds:.0f} s with {jobs} jobs")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["abuse", "hundred"])
    parser.add_argument("--jobs", default="2")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        show = {"abuse": show_abuse, "hundred": show_hundred}[options.what]
        return show(Path(folder), options.jobs)


if __name__ == "__main__":
    sys.exit(main())
