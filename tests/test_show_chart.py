"""Curves over one axis: a table of their values, and a picture in which all of them are seen."""

import pytest

import pp_lab as pp
from pp_lab import LabError


def drawn(curves, x=(1, 2, 3)):
    return pp.chart(x, curves, xlabel="p", ylabel="layers", title="Held")


def test_the_text_of_a_chart_is_the_table_of_its_values():
    assert repr(drawn({"first": [96, 96, 96], "mean": [96, 72, 64.25]})).splitlines() == [
        "Held (layers)", "p  first   mean", "1     96     96", "2     96     72", "3     96  64.25",
    ]  # fmt: skip


def test_the_legend_stands_beside_the_curves_and_the_highest_marker_is_whole(monkeypatch):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from pp_lab.show import picture

    seen = []
    monkeypatch.setattr(picture, "compact", lambda canvas: seen.append(canvas) or b"")
    assert drawn({"flat": [5, 5, 5]}).png == b""
    (canvas,) = seen
    assert isinstance(canvas, FigureCanvasAgg)
    canvas.draw()
    (axes,), (legend,) = canvas.figure.axes, canvas.figure.legends
    assert legend.get_window_extent().x0 >= axes.get_window_extent().x1
    assert axes.get_ylim()[0] == 0 and axes.get_ylim()[1] > 5.2


def test_a_chart_of_nothing_but_zeros_has_a_picture():
    assert drawn({"none": [0, 0, 0]}).png.startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("curves", "sentence"),
    [
        ({"short": [1, 2]}, "short has 2 values for 3 values of p"),
        ({}, "1 to 5 curves, not 0"),
        ({str(k): [1, 2, 3] for k in range(6)}, "1 to 5 curves, not 6"),
    ],
)
def test_curves_that_cannot_be_drawn_are_refused(curves, sentence):
    with pytest.raises(LabError, match=sentence):
        drawn(curves)
