"""A timeline: a text where there is only text, a picture elsewhere, alive where scripts run."""

from functools import cached_property

from ..schedule import LabError, Op, Pair, Trace
from .layout import Panel, build, in_seconds
from .live import embedded, html
from .svg import svg


class Timeline:
    """One or more traces over one time axis. Its repr is the timeline as text.

    `html` is the picture with the live timeline; `png` are the bytes of the picture, `svg` is its
    text. The same traces give the same bytes. Without matplotlib there is the SVG alone.
    """

    def __init__(self, panels):
        self.panels = tuple(panels)

    @cached_property
    def scene(self):
        """Where everything stands, in pixels."""
        return build(self.panels)

    @cached_property
    def png(self) -> bytes:
        """The picture as a PNG file."""
        from .picture import png  # matplotlib is needed only here

        return png(self.scene)

    @cached_property
    def svg(self) -> str:
        """The picture as an SVG text."""
        return svg(self.scene, repr(self))

    @cached_property
    def html(self) -> str:
        """The picture and its live version, for a notebook or a page."""
        try:
            image = embedded("png", self.png)
        except ImportError:
            image = embedded("svg+xml", self.svg.encode())
        return html(self.scene, image, repr(self))

    def save(self, path):
        """Write the picture as a file: SVG if its name ends in .svg, else PNG."""
        if str(path).endswith(".svg"):
            content = self.svg.encode()
        else:
            try:
                content = self.png
            except ImportError:
                raise LabError(
                    f"{path}: a PNG is painted by matplotlib, which is not installed here: give a "
                    "name that ends in .svg, or install it"
                ) from None
        with open(path, "wb") as file:
            file.write(content)

    def _repr_html_(self):
        return self.html  # for whoever puts a timeline into a page of its own

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": repr(self), "text/html": self.html}

    def __repr__(self):
        texts = []
        for panel in self.panels:
            texts.append(str(panel.trace))
            if panel.predicted:
                texts.append(f"predicted: {panel.predicted}")
        return "\n".join(texts)


def timeline(trace: Trace, predicted: Trace = None, marks=()) -> Timeline:
    """The timeline of a trace, over that of a prediction where one is given.

    marks: ops (`Op` or `Pair`) to point out, like the culprit of an error.
    """
    for name, value in (("trace", trace), ("predicted", predicted)):
        if not isinstance(value, Trace) and (value is not None or name == "trace"):
            raise LabError(
                f"{name} is a {type(value).__name__}, not a Trace: give what "
                "simulate(…) returns, or the .trace of a run"
            )
    if predicted and predicted.schedule.p != trace.schedule.p:
        raise LabError(
            f"the prediction has p={predicted.schedule.p} ranks and the trace "
            f"p={trace.schedule.p}: predict the schedule that ran"
        )
    marks = (marks,) if isinstance(marks, (Op, Pair)) else marks
    parts = tuple(op for item in marks for op in item.parts or (item,))
    return Timeline([Panel(trace, predicted, parts)])


def stack(*traces: Trace) -> Timeline:
    """Several traces under each other, over one time axis and one scale of memory."""
    units = {in_seconds(trace) for trace in traces}
    if len(units) != 1:
        raise LabError(
            "stack needs at least one trace, and all of them in the same unit: "
            "either all measured in seconds, or none"
        )
    return Timeline([Panel(trace) for trace in traces])


def bundle(trace: Trace, include=None, exclude=None) -> dict:
    """What a notebook shows for a bare `Trace`: a formatter for IPython's mimebundles."""
    return timeline(trace)._repr_mimebundle_()
