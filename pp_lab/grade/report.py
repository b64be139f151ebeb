"""What a grading says: a table, a CSV file, and for each learner a page."""

import csv
import html
import io
import sys

from .assemble import name_of

MARKS = {"yes": ("✓", "#007a5a"), "no": ("✗", "#b34700"), "note": ("·", "#595959")}
CONTACT = "The sizes and seeds that were drawn are not shown: your code should hold for all."


class Progress:
    """A bar on a terminal, a line for each submission elsewhere."""

    def __init__(self, total, stream=None):
        self.total, self.count, self.stream = total, 0, stream or sys.stderr
        self.bar = self.stream.isatty()

    def show(self, result):
        self.count += 1
        text = f"{self.count}/{self.total} {result['submission']}: {marks(result)}"
        if self.bar:
            filled = 30 * self.count // self.total
            text = f"\r\033[K[{'█' * filled}{'·' * (30 - filled)}] {text[:60]}"
        print(text, end="" if self.bar else "\n", file=self.stream, flush=True)

    def done(self):
        if self.bar and self.count:
            print(file=self.stream)


def marks(result):
    return f"{result['points']:g} of {result['of']:g}" + (" (!)" if result["error"] else "")


def table(results):
    """For a terminal: a row for each submission, a column for each exercise."""
    lines = []
    for lab in dict.fromkeys(r["lab"] for r in results):
        group = [r for r in results if r["lab"] == lab]
        names = list(group[0]["exercises"])
        lines.append(f"{lab}: " + ", ".join(f"{k} {name}" for k, name in enumerate(names, 1)))
        width = max(10, *(len(r["submission"]) for r in group))
        lines.append(f"{'':{width}}  " + "".join(f"{k:>5}" for k in range(1, len(names) + 1))
                     + "    sum")  # fmt: skip
        best = [e["of"] for e in group[0]["exercises"].values()]
        lines.append(_row("possible", width, best, sum(best)))
        for r in group:
            points = [e["points"] for e in r["exercises"].values()]
            lines.append(_row(r["submission"], width, points, r["points"])
                         + (f"  {r['error'].splitlines()[0]}" if r["error"] else ""))  # fmt: skip
    return "\n".join(lines)


def _row(name, width, points, total):
    return f"{name:{width}}  " + "".join(f"{p:5g}" for p in points) + f"  {total:5g}"


def csv_of(results):
    """grades.csv: submission, lab, points, of, a column for each exercise, error, remarks."""
    names = list(dict.fromkeys(name for r in results for name in r["exercises"]))
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["submission", "lab", "points", "of", *names, "error", "remarks"])
    for r in results:
        each = [f"{r['exercises'][n]['points']:g}" if n in r["exercises"] else "" for n in names]
        told = [_cell(r["error"] or ""), _cell("; ".join(r["remarks"]))]
        rows.writerow([_cell(r["submission"]), r["lab"], f"{r['points']:g}", f"{r['of']:g}",
                       *each, *told])  # fmt: skip
    return text.getvalue()


def _cell(text):
    """Spreadsheets take what begins like a formula for one."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t") else text


def for_oneself(result):
    """What `--self` prints: every verdict, and what to do next."""
    lines, todo = [], None
    for name, e in result["exercises"].items():
        lines.append(f"{name}: {e['points']:g} of {e['of']:g}")
        if e["points"] < e["of"]:
            told = [(k, t) for k, t in e["reasons"] if k != "yes"] or e["reasons"]
            lines += [f"  {MARKS[k][0]} " + t.replace("\n", "\n    ") for k, t in told]
            todo = todo or (name, e)
    lines += [f"remark: {text}" for text in result["remarks"]]
    if result["error"]:
        lines.append(f"error: {result['error']}")
    lines.append(f"\n{result['points']:g} of {result['of']:g} points.")
    if todo:
        name, e = todo
        fresh = any(text == "not attempted" for _, text in e["reasons"])
        do = "write it" if fresh else "its check, in the notebook, shows the picture"
        lines.append(f"Next: {e['title']}: {do}, and the hints below it help.")
    else:
        lines.append("All done. The questions at the end of the lab are what to take away.")
    return "\n".join(lines)


def feedback(result, course, assembled):
    """A learner's page: their cells, marks, reasons and timelines, but no hidden test."""
    parts = []
    exercises = {e.name: e for e in course.exercises}
    cells = {name_of(c): c for c in course.answer_cells}
    for name, e in result["exercises"].items():
        parts.append(f"<h2>{html.escape(e['title'])}</h2>")
        parts.append(f"<p class=marks>{e['points']:g} of {e['of']:g}</p>")
        if name not in exercises:
            continue  # the instructor's own tests stay hidden
        parts.append(f"<ul>{''.join(map(_reason, e['reasons']))}</ul>{e.get('figure', '')}")
        for answer in exercises[name].answers:
            if assembled is not None and answer in assembled.answers:
                source = html.escape(assembled.answers[answer])
                parts.append(f"<pre tabindex=0>{source}</pre>")
            elif answer in cells:
                parts.append(f"<p>The answer cell {html.escape(answer)} was not found.</p>")
    remarks = "".join(f"<li>{html.escape(text)}</li>" for text in result["remarks"])
    error = f"<p class=error>{html.escape(result['error'])}</p>" if result["error"] else ""
    title = f"{html.escape(result['submission'])}: {marks(result)}"
    return PAGE.format(
        title=title, error=error, body="\n".join(parts), contact=CONTACT,
        remarks=f"<h2>What else was seen</h2><ul>{remarks}</ul>" if remarks else "",
    )  # fmt: skip


def _reason(reason):
    kind, text = reason
    mark, colour = MARKS[kind]
    first, *rest = html.escape(text).split("\n")
    more = f"<pre tabindex=0>{chr(10).join(rest)}</pre>" if rest else ""
    return f"<li><b style='color:{colour}'>{mark}</b> {first}{more}</li>"


PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
        color: #1a1a1a; background: #fff }}
h2 {{ margin-top: 2.5rem; font-size: 1.1rem }} .marks {{ font-weight: bold }}
pre {{ background: #f4f4f4; padding: 0.6rem; overflow-x: auto; font-size: 0.85rem }}
ul {{ list-style: none; padding-left: 0.5rem }} .error {{ color: #b34700 }}
img {{ max-width: 100% }}
</style></head><body>
<h1>{title}</h1>
{error}
<p>{contact}</p>
{body}
{remarks}
</body></html>
"""
