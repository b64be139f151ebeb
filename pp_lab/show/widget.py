"""The explorer in a notebook: sliders over a timeline, a cursor to step, a schedule by hand."""

import base64
from dataclasses import fields, replace
from html import escape

import ipywidgets as widgets

from ..schedule import Cost, simulate
from ..schedule.by_hand import ByHand
from ..schedule.op import Op, parse
from .explore import FAMILY, LIMITS, NAMES, Choice, moments, view
from .layout import Panel, build
from .svg import svg

ONE_STAGE = ("GPipe", "1F1B", "eager 1F1B", "ZB-H1", "ZB-H2")  # per rank: what a hand can build
BUILT = {name: FAMILY[name][0] for name in ONE_STAGE}
NAMED = {"description_width": "13em"}  # the longest name of a control fits


def _wide(width="auto"):
    """A layout of that width: a widget's own one cuts names off and squeezes sliders."""
    return widgets.Layout(width=width)


def _row(*controls):
    """Controls beside each other, and below where the window is narrow."""
    return widgets.HBox(controls, layout=widgets.Layout(flex_flow="row wrap"))


# JupyterLab leaves tables in widgets without any space between columns.
TABLE = "<style>.pp-lab-figures :is(td, th) {padding: 0 0.7em; text-align: right}</style>"


class Explorer(widgets.Tab):
    """Two tabs: any schedule of the family, and one of your own.

    choice: what the controls say; `view` is what they show.
    """

    def __init__(self, choice=None):
        self.choice = choice or Choice()
        super().__init__(children=[self._family(), Hand().box])
        self.set_title(0, "the family")
        self.set_title(1, "build one by hand")
        self._show()

    def _family(self):
        names = list(FAMILY)
        self.controls = {
            "schedule": widgets.Dropdown(
                options=names, description="schedule", style=NAMED, layout=_wide()
            ),
            "other": widgets.Dropdown(
                options=[("nothing", ""), *((n, n) for n in names)],
                description="beside",
                style=NAMED,
                layout=_wide(),
            ),
        }
        for field in fields(Choice):
            if field.name in LIMITS:
                least, most = LIMITS[field.name]
                whole = field.name in ("p", "m", "v", "cap")
                make = widgets.IntSlider if whole else widgets.FloatSlider
                self.controls[field.name] = make(
                    min=least, max=most, description=NAMES[field.name], style=NAMED,
                    layout=_wide(), **({} if whole else {"step": 0.25}),
                )  # fmt: skip
        for name, control in self.controls.items():
            control.value = getattr(self.choice, name)
            control.observe(self._changed, "value")
        self.picture, self.figures = widgets.HTML(), widgets.HTML()
        self.figures.add_class("pp-lab-figures")
        self.says = widgets.HTML()
        self.step = widgets.IntSlider(
            min=-1, max=0, value=-1, description="step", layout=_wide("30em")
        )
        self.play = widgets.Play(min=-1, value=-1, interval=600)
        widgets.jslink((self.play, "value"), (self.step, "value"))
        self.step.observe(self._stepped, "value")
        self.file = widgets.Text(value="my_schedule.csv", description="save as")
        save = widgets.Button(description="save CSV")
        save.on_click(self._save)
        grid = widgets.GridBox(
            list(self.controls.values()),
            layout=widgets.Layout(
                grid_template_columns="repeat(auto-fit, minmax(min(28em, 100%), 1fr))"
            ),
        )
        return widgets.VBox(
            [grid, _row(self.play, self.step), self.says, self.picture, self.figures,
             _row(self.file, save)]
        )  # fmt: skip

    def _changed(self, _):
        values = {name: control.value for name, control in self.controls.items()}
        self.choice = replace(self.choice, **values, time=-1)
        self.step.unobserve(self._stepped, "value")
        self.step.value = -1
        self.step.observe(self._stepped, "value")
        self._show()

    def _stepped(self, change):
        trace = self.view.trace
        if trace is not None:
            times = moments(trace)
            at = change["new"]
            time = float(times[min(at, len(times) - 1)]) if at >= 0 else -1
            self.choice = replace(self.choice, time=time)
            self._show()

    def _show(self):
        self.view = view(self.choice)
        self.picture.value, self.figures.value = self.view.picture, TABLE + self.view.figures
        self.says.value = self.view.sentence
        if self.view.trace is not None:
            self.step.max = self.play.max = len(moments(self.view.trace)) - 1

    def _save(self, _):
        if self.view.trace is None:
            self.says.value = f"nothing was saved: {self.view.sentence}"
            return
        try:
            self.view.trace.schedule.to_csv(self.file.value)
        except OSError as error:
            self.says.value = f"nothing was saved: {error}"
        else:
            self.says.value = f"saved as {self.file.value}: torch.distributed.pipelining reads it"

    def _repr_mimebundle_(self, **kwargs):
        """Where there is no kernel, or no widgets, the picture stays.

        As an image, because an SVG element is not kept in a notebook that nobody trusts.
        """
        drawn = base64.b64encode(self.view.picture.encode()).decode()
        alt = escape(str(self.view.trace or self.view.sentence))
        picture = f'<img alt="{alt}" src="data:image/svg+xml;base64,{drawn}">'
        return super()._repr_mimebundle_(**kwargs) | {"text/html": picture}


class Hand:
    """A schedule op by op: a button for each op that can come next."""

    def __init__(self):
        self.p, self.m = (
            widgets.IntSlider(
                min=1, max=most, value=value, description=NAMES[name], style=NAMED,
                layout=_wide("28em"),
            )
            for name, most, value in (("p", 5, 3), ("m", 6, 4))
        )  # fmt: skip
        self.split = widgets.Checkbox(
            value=False, description="split backwards into I and W", indent=False, layout=_wide()
        )
        for control in (self.p, self.m, self.split):
            control.observe(lambda _: self.restart(), "value")
        self.asked = widgets.Text(placeholder="an op, like 0F0", description="or type")
        self.asked.continuous_update = False
        self.asked.observe(self._typed, "value")
        undo = widgets.Button(description="take the last one back", layout=_wide())
        undo.on_click(lambda _: self._undo())
        self.says, self.picture, self.ranks = widgets.HTML(), widgets.HTML(), widgets.VBox()
        self.box = widgets.VBox(
            [_row(self.p, self.m, self.split), self.ranks, _row(self.asked, undo), self.says,
             self.picture]
        )  # fmt: skip
        self.restart()

    def restart(self):
        self.hand = ByHand(self.p.value, self.m.value, self.split.value)
        self._show("Each row offers what its rank can run now.")

    def add(self, op):
        """Add an op to the row of its rank, or say why it cannot come now."""
        if reason := self.hand.why_not(op.stage, op):
            self._show(f"Not now: {reason}.")
            return
        self.hand.add(op.stage, op)
        self._show("")

    def _typed(self, change):
        if change["new"]:
            self.asked.value = ""
            try:
                op = parse(change["new"])
            except ValueError as error:
                self._show(str(error))
                return
            if isinstance(op, Op):
                self.add(op)
            else:
                self._show(f"{op} is not a single op: write one like 0F0")

    def _undo(self):
        op = self.hand.undo()
        self._show(f"{op} is taken back." if op else "There is nothing to take back.")

    def _show(self, said):
        rows = []
        for rank in range(self.hand.p):
            buttons = []
            for op in self.hand.ready(rank):
                button = widgets.Button(description=str(op), layout=widgets.Layout(width="4.5em"))
                button.on_click(lambda _, op=op: self.add(op))
                buttons.append(button)
            rows.append(_row(widgets.Label(f"rank {rank}"), *buttons))
        self.ranks.children = rows
        if self.hand.complete:
            schedule = self.hand.schedule()
            trace = simulate(schedule, Cost(F=1, B=2))
            names = self.hand.recognised(BUILT)
            said += (
                f" It is complete and legal: makespan {trace.makespan}, peak activations "
                f"{' '.join(map(str, trace.peak_activations))}. "
                + (f"This is {' and '.join(names)}." if names else "It is none of the family.")
            )
            self.picture.value = svg(build([Panel(trace)]), "the schedule built by hand")
        else:
            lines = [f"rank {r}: {' '.join(map(str, row))}" for r, row in enumerate(self.hand.rows)]
            self.picture.value = f"<pre>{chr(10).join(lines)}</pre>"
        self.says.value = said.strip()


def explore(**choice):
    """An explorer for a notebook: every schedule of the family under sliders, and one by hand.

    choice: what it starts with, the fields of `pp_lab.show.explore.Choice`, such as
    schedule="ZB-V", p=4, m=8
    """
    return Explorer(Choice(**choice))
