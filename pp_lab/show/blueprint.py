"""Where the ranks of a `Grid` stand: nodes, the ranks in each, and how far each group reaches."""

from functools import cached_property
from itertools import groupby

from ..schedule import Grid, LabError
from .palette import LABEL, TONES, edge, mix
from .still import Still

# Light shades of the palette: a stage has its colour, and its number in every box.
SHADES = [
    mix(f"#{colour}", "#ffffff", 0.45)
    for colour in "56B4E9 E69F00 3DBB95 F0E442 CC79A7 B9A3E3 D55E00 A6A6A6".split()
]
BORDERS = ["-", (0, (4, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5))]  # of the data-parallel copies
LINKS = {"tp": "-", "cp": (0, (2, 1)), "ep": (0, (3, 1, 1, 1)), "dp": (0, (6, 3)),
         "pp": (0, (1.5, 1.5))}  # fmt: skip
LETTERS = {"tp": "t", "cp": "c", "ep": "e", "dp": "d", "pp": "p"}
COLUMNS = 4  # of boxes in a node, and of nodes in the picture
MOST = 512


class Blueprint(Still):
    """A grid on nodes of `per_node` ranks. Its repr says what stands where."""

    def __init__(self, grid, per_node=8):
        if not isinstance(grid, Grid):
            raise LabError(f"a blueprint draws a Grid, not {grid!r}")
        if not isinstance(per_node, int) or isinstance(per_node, bool) or per_node < 1:
            raise LabError(f"per_node={per_node!r}: give a whole number of ranks, 1 at least")
        if grid.size > MOST:
            raise LabError(f"{grid.size} ranks are too many for one picture: {MOST} at most")
        self.grid, self.per_node = grid, per_node

    @property
    def axes(self):
        """The axes that have more than one place, the one that varies fastest first."""
        return [axis for axis in self.grid.axes if getattr(self.grid, axis) > 1]

    @property
    def nodes(self):
        """The ranks of each node."""
        return [
            range(first, min(first + self.per_node, self.grid.size))
            for first in range(0, self.grid.size, self.per_node)
        ]

    def reach(self, axis):
        """On how many nodes the widest group of this axis stands."""
        return max(len({rank // self.per_node for rank in group})
                   for group in self.grid.groups(axis))  # fmt: skip

    @property
    def title(self):
        size, nodes = self.grid.size, len(self.nodes)
        return (f"{self.grid or 'no parallelism'}: {size} rank{'s' * (size > 1)} on {nodes} "
                f"node{'s' * (nodes > 1)}")  # fmt: skip

    def __repr__(self):
        lines = [f"{self.title}, order {self.grid.order}"]
        for number, ranks in enumerate(self.nodes):
            places = [self.grid.coordinates(rank) for rank in ranks]
            held = "".join(
                f", {axis} {_spans({place[axis] for place in places})}" for axis in self.axes[::-1]
            )
            lines.append(f"node {number}: ranks {_spans(ranks)}{held}")
        for axis in self.axes:
            lines.append(f"{axis} groups {_where(self.reach(axis))}, "
                         f"like {_some(self.grid.group(axis, 0))}")  # fmt: skip
        return "\n".join(lines)

    @cached_property
    def png(self) -> bytes:
        """The picture as a PNG file."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        from .picture import compact

        place, width, height = self._places()
        bottom = height + 0.45 + 0.42 * (len(self.axes) + 1)
        figure = Figure(figsize=(0.62 * width, 0.62 * (bottom + 0.9)), dpi=90,
                        facecolor=TONES["paper"])  # fmt: skip
        axes = figure.add_axes((0, 0, 1, 1), frameon=False, xticks=(), yticks=())
        axes.set(xlim=(0, width), ylim=(bottom, -0.9))
        axes.text(0.2, -0.5, self.title, size=11, weight="bold", color=TONES["ink"], va="center")
        axes.text(width - 0.2, -0.5, f"order {self.grid.order}", size=9, color=TONES["faint"],
                  va="center", ha="right")  # fmt: skip
        self._draw_nodes(axes, place)
        self._draw_ranks(axes, place)
        self._draw_links(axes, place, height + 0.35)
        return compact(FigureCanvasAgg(figure))

    def _places(self):
        """(where each rank's box is, width and height of the picture), in boxes."""
        across = min(COLUMNS, self.per_node, self.grid.size)
        down = -(-min(self.per_node, self.grid.size) // across)
        wide, high = across + 0.6, down + 0.9
        place = {}
        for number, ranks in enumerate(self.nodes):
            left, top = number % COLUMNS * wide + 0.3, number // COLUMNS * high + 0.6
            for k, rank in enumerate(ranks):
                place[rank] = left + k % across, top + k // across
        columns = min(COLUMNS, len(self.nodes))
        # A single small node still has room for the title and the lines below it.
        return place, max(columns * wide, 14), -(-len(self.nodes) // COLUMNS) * high

    def _draw_nodes(self, axes, place):
        from matplotlib.patches import FancyBboxPatch

        for number, ranks in enumerate(self.nodes):
            xs, ys = zip(*(place[rank] for rank in ranks), strict=True)
            axes.add_patch(FancyBboxPatch(
                (min(xs) - 0.1, min(ys) - 0.42), max(xs) - min(xs) + 1.2, max(ys) - min(ys) + 1.52,
                boxstyle="round,pad=0,rounding_size=0.15", facecolor="#f6f6f6",
                edgecolor=TONES["faint"], linewidth=1))  # fmt: skip
            axes.text(min(xs), min(ys) - 0.2, f"node {number}", size=8, color=TONES["faint"],
                      va="center")  # fmt: skip

    def _draw_ranks(self, axes, place):
        from matplotlib.patches import Rectangle
        from matplotlib.patheffects import withStroke

        named = self.axes[::-1] or ["pp"]
        for rank, (x, y) in place.items():
            here = self.grid.coordinates(rank)
            colour = SHADES[here["pp"] % len(SHADES)]
            axes.add_patch(Rectangle(
                (x + 0.05, y + 0.05), 0.9, 0.9, facecolor=colour, edgecolor=edge(edge(colour)),
                linewidth=1.3, linestyle=BORDERS[here["dp"] % len(BORDERS)]))  # fmt: skip
            # In front of the lines, with a rim of the box's colour.
            text = dict(color=LABEL, ha="center", va="center", zorder=5,
                        path_effects=[withStroke(linewidth=2.5, foreground=colour)])  # fmt: skip
            axes.text(x + 0.5, y + 0.26, str(rank), size=9, weight="bold", **text)
            label = " ".join(f"{LETTERS[axis]}{here[axis]}" for axis in named)
            axes.text(x + 0.5, y + 0.77, label, size=6.5 if len(label) < 10 else 5, **text)

    def _draw_links(self, axes, place, top):
        """The groups of rank 0 as lines through their members, and a line of text for each."""
        for k, axis in enumerate(self.axes):
            group = self.grid.group(axis, 0)
            colour, y = TONES["faint"], top + 0.42 * k
            # Each a little to the right and lower, so that lines along one row are all seen.
            by = k - (len(self.axes) - 1) / 2
            points = [(left + 0.5 + 0.13 * by, high + 0.52 + 0.075 * by)
                      for left, high in (place[rank] for rank in group)]  # fmt: skip
            style = dict(color=colour, linestyle=LINKS[axis], linewidth=1.3)
            axes.plot(*zip(*points, strict=True), marker=".", markersize=4, **style)
            axes.plot([0.3, 1.5], [y, y], **style)
            axes.text(1.7, y, f"{axis.upper()} ({LETTERS[axis]}): groups of {len(group)} "
                      f"{_where(self.reach(axis))}; drawn: {_some(group)}",
                      size=9, color=TONES["ink"], va="center")  # fmt: skip
        axes.text(0.3, top + 0.42 * len(self.axes), "colour: pipeline stage (p) · border: "
                  "data-parallel copy (d)", size=8, color=TONES["faint"], va="center")  # fmt: skip


def blueprint(grid, per_node=8) -> Blueprint:
    """Draw a `Grid` on nodes of `per_node` ranks: where each rank stands, and which groups stay
    inside a node."""
    return Blueprint(grid, per_node)


def _where(nodes):
    return "inside a node" if nodes == 1 else f"across {nodes} nodes"


def _spans(numbers):
    """Runs of numbers: 0-3, 8."""
    runs = []
    for _, run in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in run]
        runs.append(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]))
    return ", ".join(runs)


def _some(group):
    shown = [*group] if len(group) <= 8 else [*group[:3], "…", group[-1]]
    return " ".join(map(str, shown))
