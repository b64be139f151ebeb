"""What the explorer shows for a choice of schedule, sizes and costs: no widgets in here.

`pp_lab.explore` puts it under sliders in a notebook, or on a page of its own.
"""

from dataclasses import dataclass, fields
from fractions import Fraction
from html import escape

from ..schedule import Cost, LabError, schedules, simulate, verify
from ..schedule.collector import paused
from ..schedule.table import Table
from ..schedule.text import headline, number
from .layout import Panel, build
from .svg import svg

# Name, function, whether it has chunks, and the closed form of its makespan with the cost of a
# rank's whole share, where facts give one: a text, and a function of (p, m, v, cost).
FAMILY = {
    "GPipe": (schedules.gpipe, False, "(m+p−1)(F+B) + 2(p−1)c",
              lambda p, m, v, c: (m + p - 1) * (c.F + c.B) + 2 * (p - 1) * c.comm),
    "1F1B": (schedules.one_f_one_b, False, "(m+p−1)(F+B), without latency",
             lambda p, m, v, c: None if c.comm else (m + p - 1) * (c.F + c.B)),
    "eager 1F1B": (schedules.eager_1f1b, False, "(m+p−1)(F+B), without latency",
                   lambda p, m, v, c: None if c.comm else (m + p - 1) * (c.F + c.B)),
    "interleaved 1F1B": (schedules.interleaved, True,
                         "(m+(p−1)/v)(F+B), where p divides m, without latency",
                         lambda p, m, v, c: None if c.comm or m % p else
                         (m + Fraction(p - 1, v)) * (c.F + c.B)),
    "looped breadth-first": (schedules.looped_bfs, True, None, None),
    "ZB-H1": (schedules.zb_h1, False, "m(F+I+W) + (p−1)·max(F+I−W, F, I), without latency",
              lambda p, m, v, c: None if c.comm or m < p else
              m * (c.F + c.I + c.W) + (p - 1) * max(c.F + c.I - c.W, c.F, c.I)),
    "ZB-H2": (schedules.zb_h2, False, None, None),
    "ZB-V": (schedules.zb_v, False, None, None),
    "V-Half": (schedules.v_half, False, None, None),
    "V-Min": (schedules.v_min, False, None, None),
    "DualPipe": (schedules.dualpipe, False, None, None),
    "DualPipeV": (schedules.dualpipe_v, False, None, None),
    "combined 1F1B": (schedules.combined_1f1b, True, None, None),
}  # fmt: skip
LIMITS = {"p": (1, 16), "m": (1, 64), "v": (1, 4), "F": (0, 10), "I": (0, 10), "W": (0, 10),
          "pair": (0, 30), "comm": (0, 10), "cap": (0, 128)}  # fmt: skip

NAMES = {
    "p": "ranks p", "m": "micro-batches m", "v": "chunks v", "F": "F forward",
    "I": "I input gradient", "W": "W weight gradient", "pair": "pair (0: F + B)",
    "comm": "latency of a hop", "cap": "most activations (0: any)",
}  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """What the controls say. F, I, W, pair: of a rank's whole share, B is I + W, and pair 0
    means F + B; comm: latency of a hop; cap: most activations on a rank, 0 for any number;
    other: a schedule to compare with, or ""; time: where the cursor stands, -1 for none."""

    schedule: str = "1F1B"
    p: int = 4
    m: int = 8
    v: int = 2
    F: float = 1
    I: float = 1  # noqa: E741 - the field's letter
    W: float = 1
    pair: float = 0
    comm: float = 0
    cap: int = 0
    other: str = ""
    time: float = -1

    @classmethod
    def from_texts(cls, texts):
        """From the fields of a form, {name: text}; ValueError says what is wrong."""
        given = {}
        for field in fields(cls):
            if field.name not in texts:
                continue
            text = texts[field.name]
            try:
                given[field.name] = (
                    text if isinstance(field.default, str)
                    else int(text) if field.name in ("p", "m", "v", "cap") else float(text)
                )  # fmt: skip
            except ValueError:
                raise ValueError(f"{field.name}={text!r} is not a number") from None
        return cls(**given)

    @property
    def cost(self):
        """The cost of a rank's whole share."""
        F, I, W, pair, comm = (  # noqa: E741
            Fraction(x).limit_denominator(1000)
            for x in (self.F, self.I, self.W, self.pair, self.comm)
        )
        return Cost(F=F, B=I + W, I=I, W=W, pair=pair or None, comm=comm)

    def made(self, name):
        """The schedule of that name, in these sizes."""
        if name not in FAMILY:
            raise ValueError(f"there is no schedule {name!r}: choose from {', '.join(FAMILY)}")
        make, chunks, *_ = FAMILY[name]
        return make(self.p, self.m, self.v) if chunks else make(self.p, self.m)


@dataclass(frozen=True)
class View:
    """What is shown. picture: SVG; figures: HTML; sentence: about the cursor, or what is wrong
    with the choice; trace: the simulation, None where there is none."""

    picture: str
    figures: str
    sentence: str
    trace: object = None


@paused()
def view(choice: Choice) -> View:
    """Simulate a choice and draw it. What cannot be is one sentence, and no exception."""
    try:
        for name, (least, most) in LIMITS.items():
            if not least <= getattr(choice, name) <= most:
                raise ValueError(f"{name}={getattr(choice, name)}: from {least} to {most}")
        cost, names = choice.cost, [choice.schedule, *filter(None, [choice.other])]
        made = [choice.made(name) for name in names]
        if choice.cap:
            for schedule in made:
                verify(schedule, memory_cap=choice.cap)
        traces = [simulate(s, cost.split(s.stages // s.p)) for s in made]
    except (LabError, ValueError) as error:
        said = getattr(error, "reason", None) or str(error)
        return View("", "", said.partition("\n")[0])
    alt = "; ".join(map(headline, traces))
    cursor = choice.time if choice.time >= 0 else None
    picture = svg(build([Panel(trace) for trace in traces]), alt, cursor)
    sentence = moment(traces[0], choice.time) if cursor is not None else ""
    return View(picture, _figures(choice, traces, cost), sentence, traces[0])


def _figures(choice, traces, cost):
    """The table of figures, and the closed form of the makespan where there is one."""
    text = Table(traces, cost)._repr_html_()
    _, _, formula, value = FAMILY[choice.schedule]
    if formula:
        expected = value(choice.p, choice.m, choice.v, cost)
        said = "does not apply here" if expected is None else (
            f"{number(expected)}, {'as' if expected == traces[0].makespan else 'not as'} simulated"
        )  # fmt: skip
        text += f"<p>closed form of the makespan: {escape(formula)} = {said}</p>"
    return text


def moments(trace):
    """The times at which something starts or ends, in order: where a step of the cursor goes."""
    return sorted({t for e in trace.events for t in (e.start, e.end)})


def moment(trace, time):
    """A sentence for each rank: what it does at `time`, or why it idles."""
    said = []
    for rank in range(trace.schedule.p):
        running, _ = trace.at(rank, time)
        if running:
            said.append(f"rank {rank} runs {trace.schedule.label(running.op)}")
        elif time >= trace.makespan:
            said.append(f"rank {rank} is done")
        else:
            said.append(trace.why_idle(rank, time))
    return f"At {number(time)}: " + "; ".join(said) + "."
