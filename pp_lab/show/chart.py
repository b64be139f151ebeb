"""A few curves over one axis: a table where there is only text, a picture elsewhere."""

from functools import cached_property

from ..schedule import LabError
from .palette import KINDS, MARK, MEMORY, TONES
from .still import Still

STYLES = [(KINDS["F"][0], "o", "-"), (KINDS["B"][0], "s", "--"), (MEMORY, "^", ":"),
          (KINDS["I"][0], "D", "-."), (MARK, "v", (0, (1, 3)))]  # fmt: skip


class Chart(Still):
    """Curves over common x values. Its repr is the table of the values."""

    def __init__(self, x, curves, xlabel, ylabel, title):
        self.x, self.curves = list(x), {name: list(ys) for name, ys in curves.items()}
        self.xlabel, self.ylabel, self.title = xlabel, ylabel, title
        for name, ys in self.curves.items():
            if len(ys) != len(self.x):
                raise LabError(f"{name} has {len(ys)} values for {len(self.x)} values of {xlabel}")
        if not 1 <= len(self.curves) <= len(STYLES):
            raise LabError(f"a chart takes 1 to {len(STYLES)} curves, not {len(self.curves)}")

    @cached_property
    def png(self) -> bytes:
        """The picture as a PNG file."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        from .picture import compact

        figure = Figure(figsize=(7, 3.4), dpi=100, facecolor=TONES["paper"], layout="constrained")
        axes = figure.add_subplot()
        for k, (name, ys) in enumerate(self.curves.items()):
            colour, marker, line = STYLES[k]
            # Each thinner than the one before, so that two that agree are both seen.
            axes.plot(self.x, [float(y) for y in ys], color=colour, marker=marker, linestyle=line,
                      linewidth=3.5 - 0.6 * k, markersize=10 - 1.5 * k, label=name,
                      markeredgecolor=TONES["ink"], markeredgewidth=0.5)  # fmt: skip
        axes.set(xlabel=self.xlabel, ylabel=self.ylabel, title=self.title)
        highest = max(float(y) for ys in self.curves.values() for y in ys)
        axes.set_ylim(0, 1.08 * highest or 1)  # a marker at the top is seen whole
        axes.grid(color=TONES["rule"], linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(frameon=False, loc="outside right upper")  # never over a curve
        return compact(FigureCanvasAgg(figure))

    def __repr__(self):
        rows = [[self.xlabel, *self.curves]]
        for k, x in enumerate(self.x):
            rows.append([_text(x), *(_text(ys[k]) for ys in self.curves.values())])
        widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
        lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True))
                 for row in rows]  # fmt: skip
        return "\n".join([f"{self.title} ({self.ylabel})", *lines])


def chart(x, curves, *, xlabel, ylabel, title="") -> Chart:
    """Draw `curves`, {name: values}, over the values `x`, with a marker at each."""
    return Chart(x, curves, xlabel, ylabel, title)


def _text(value):
    return str(value) if isinstance(value, int) else f"{float(value):.4g}"
