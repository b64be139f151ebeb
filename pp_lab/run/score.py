"""A mark with its reasons."""

import html


class Score(float):
    """Points, as a number; `reasons` says how they came about.

    `repr` is the bare number, so that graders can read it. `print(score)` and the notebook
    show the reasons. reasons: pairs (kind, sentence), kind being "yes", "no" or "note".
    """

    def __new__(cls, points, of, reasons, figure=None):
        self = super().__new__(cls, points)
        self.of, self.reasons, self.figure = of, list(reasons), figure
        return self

    @property
    def passed(self):
        return self >= self.of

    def __repr__(self):
        return f"{float(self):g}"

    def __str__(self):
        marks = {"yes": "✓", "no": "✗", "note": "·"}
        return "\n".join(
            [f"{self!r} of {self.of:g}", *(f"{marks[kind]} {text}" for kind, text in self.reasons)]
        )

    def _repr_html_(self):
        marks = {"yes": ("✓", "#007a5a"), "no": ("✗", "#b34700"), "note": ("·", "#666")}
        rows = []
        for kind, text in self.reasons:
            mark, colour = marks[kind]
            first, *rest = html.escape(text).split("\n")
            more = f"<pre style='margin:0.3em 0'>{chr(10).join(rest)}</pre>" if rest else ""
            rows.append(f"<li><b style='color:{colour}'>{mark}</b> {first}{more}</li>")
        picture = self.figure.html if self.figure is not None else ""
        return (
            f"<div><b>{self!r} of {self.of:g}</b>"
            f"<ul style='list-style:none;padding-left:0.5em;margin:0.3em 0'>{''.join(rows)}"
            f"</ul>{picture}</div>"
        )
