"""A grid on nodes: what stands where, in words and as a picture."""

import re

import pytest

import pp_lab as pp
from pp_lab import Grid, LabError

BIG = Grid(tp=8, dp=2, pp=4)


def test_the_text_of_a_blueprint_says_what_each_node_holds_and_how_far_each_group_reaches():
    assert repr(pp.blueprint(BIG)).splitlines() == [
        "TP 8 × DP 2 × PP 4: 64 ranks on 8 nodes, order tp-cp-ep-dp-pp",
        "node 0: ranks 0-7, pp 0, dp 0, tp 0-7",
        "node 1: ranks 8-15, pp 0, dp 1, tp 0-7",
        "node 2: ranks 16-23, pp 1, dp 0, tp 0-7",
        "node 3: ranks 24-31, pp 1, dp 1, tp 0-7",
        "node 4: ranks 32-39, pp 2, dp 0, tp 0-7",
        "node 5: ranks 40-47, pp 2, dp 1, tp 0-7",
        "node 6: ranks 48-55, pp 3, dp 0, tp 0-7",
        "node 7: ranks 56-63, pp 3, dp 1, tp 0-7",
        "tp groups inside a node, like 0 1 2 3 4 5 6 7",
        "dp groups across 2 nodes, like 0 8",
        "pp groups across 4 nodes, like 0 16 32 48",
    ]


@pytest.mark.parametrize(
    ("order", "per_node", "reach"),
    [
        ("tp-cp-ep-dp-pp", 8, {"tp": 1, "dp": 2, "pp": 4}),
        ("tp-cp-ep-pp-dp", 8, {"tp": 1, "dp": 2, "pp": 4}),
        ("pp-dp-tp-cp-ep", 8, {"tp": 8, "dp": 1, "pp": 1}),
        ("tp-cp-ep-dp-pp", 16, {"tp": 1, "dp": 1, "pp": 4}),
        ("tp-cp-ep-dp-pp", 64, {"tp": 1, "dp": 1, "pp": 1}),
        ("tp-cp-ep-dp-pp", 4, {"tp": 2, "dp": 2, "pp": 4}),
    ],
)
def test_order_and_size_of_a_node_decide_which_groups_stay_inside(order, per_node, reach):
    drawn = pp.blueprint(Grid(tp=8, dp=2, pp=4, order=order), per_node=per_node)
    assert {axis: drawn.reach(axis) for axis in ("tp", "dp", "pp")} == reach


@pytest.mark.parametrize(
    ("grid", "per_node"),
    [(BIG, 8), (Grid(), 8), (Grid(tp=2, pp=2), 3), (Grid(tp=2, cp=2, ep=2, dp=2, pp=2), 8),
     (Grid(pp=9), 1)],
)  # fmt: skip
def test_every_rank_is_a_box_with_its_number_and_a_label(grid, per_node, monkeypatch):
    from pp_lab.show import picture

    seen = []
    monkeypatch.setattr(picture, "compact", lambda canvas: seen.append(canvas) or b"")
    assert pp.blueprint(grid, per_node).png == b""
    seen[0].draw()
    (axes,) = seen[0].figure.axes
    texts = [text.get_text() for text in axes.texts]
    assert set(map(str, range(grid.size))) <= set(texts)
    labels = [text for text in texts if re.fullmatch(r"([tcedp]\d+ ?)+", text)]
    assert len(labels) == grid.size
    assert len(set(labels)) == grid.size  # by its coordinates a rank is known
    edges = axes.get_window_extent()
    for text in axes.texts:  # nothing is cut off
        extent = text.get_window_extent()
        assert edges.x0 <= extent.x0 and extent.x1 <= edges.x1, text.get_text()


def test_a_blueprint_is_a_picture_with_its_text_as_alt_text():
    shown = pp.blueprint(BIG)._repr_mimebundle_()
    assert shown["text/plain"] in shown["text/html"]
    assert pp.blueprint(BIG).png.startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("grid", "per_node", "sentence"),
    [
        ("tp8", 8, "draws a Grid, not 'tp8'"),
        (BIG, 0, "per_node=0: give a whole number"),
        (Grid(dp=1024), 8, "1024 ranks are too many"),
    ],
)
def test_what_cannot_be_drawn_is_refused(grid, per_node, sentence):
    with pytest.raises(LabError, match=sentence):
        pp.blueprint(grid, per_node)
