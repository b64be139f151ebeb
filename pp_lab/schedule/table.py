"""Schedules side by side, as a table."""

from html import escape
from typing import NamedTuple

from .bound import bound_of
from .cost import F1B2, Cost, exact
from .schedule import Schedule
from .simulate import simulate
from .text import number
from .trace import Trace


class Row(NamedTuple):
    """What a schedule costs. Memory and parameters count in a rank's share of the model."""

    schedule: str
    p: int
    m: int
    stages: int
    makespan: object
    bubble: object
    span: object
    least: object
    peak: object
    messages: int
    parameters: object


# The heading of each column, and what it means.
HEADINGS = {
    "schedule": ("schedule", ""),
    "p": ("p", "ranks"),
    "m": ("m", "micro-batches"),
    "stages": ("stages", "in the model"),
    "makespan": ("makespan", "from the first start to the last end"),
    "bubble": ("bubble", "idle time over p x makespan"),
    "span": ("span", "longest rank, first op to last"),
    "least": ("least", "no schedule on this placement, with these kinds of ops, is faster"),
    "peak": ("peak", "activations on the fullest rank, one being a micro-batch of a rank's share"),
    "messages": ("messages", "between ranks"),
    "parameters": ("parameters", "held per rank, one being a rank's share"),
}


class Table:
    """Rows of figures under one cost model. `traces` are the simulations behind them."""

    def __init__(self, traces, cost):
        self.traces, self.cost = list(traces), cost
        self.rows = [_row(trace) for trace in self.traces]

    def cells(self):
        """Every row as texts, the headings first."""
        rows = [[HEADINGS[field][0] for field in Row._fields]]
        for row in self.rows:
            texts = row._replace(bubble=f"{float(row.bubble):.1%}")
            rows.append([x if isinstance(x, str) else number(x) for x in texts])
        return rows

    @property
    def caption(self):
        """The cost model."""
        return f"cost of a rank's share: {self.cost}"

    def __str__(self):
        rows = self.cells()
        wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(w) if k == 0 else cell.rjust(w)
                for k, (cell, w) in enumerate(zip(row, wide, strict=True))
            ).rstrip()
            for row in rows
        ]
        return "\n".join([self.caption, *lines])

    __repr__ = __str__

    def _repr_html_(self):
        head, *body = self.cells()
        titles = [HEADINGS[field][1] for field in Row._fields]
        head = "".join(
            f'<th scope="col" title="{escape(title)}">{escape(cell)}</th>'
            for cell, title in zip(head, titles, strict=True)
        )
        body = "".join(
            "<tr>"
            + f'<th scope="row">{escape(name)}</th>'
            + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            + "</tr>"
            for name, *cells in body
        )
        return (
            f"<table><caption>{escape(self.caption)}</caption><thead><tr>{head}</tr></thead>"
            f"<tbody>{body}</tbody></table>"
        )


def table(schedules: list[Schedule], cost: Cost = F1B2) -> Table:
    """Simulate each schedule and put the figures side by side.

    `cost` is that of a rank's whole share of the model; a schedule with v stages per rank is
    timed with `cost.split(v)`.
    """
    return Table((simulate(schedule, share(schedule, cost)) for schedule in schedules), cost)


def share(schedule: Schedule, cost: Cost) -> Cost:
    """The cost of one stage, where `cost` is that of a rank's whole share of the model."""
    v, rest = divmod(schedule.stages, schedule.p)
    if rest:
        raise ValueError(
            f"{schedule.name}: {schedule.stages} stages cannot share out the work of "
            f"{schedule.p} ranks evenly: give the cost per stage to simulate"
        )
    return cost.split(v)


def _row(trace: Trace) -> Row:
    s = trace.schedule
    held = max(len(s.placement.held_by(rank)) for rank in range(s.p))
    return Row(
        s.name,
        s.p,
        s.microbatches,
        s.stages,
        trace.makespan,
        trace.bubble,
        trace.span,
        bound_of(s, trace.cost),
        exact(max(trace.peak_activations) * s.p, s.stages),
        s.messages,
        exact(held * s.p, s.stages),
    )
