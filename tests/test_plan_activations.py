"""Activations in bytes: the figures of arXiv:2205.05198, and what schedules make of them."""

import pytest

from pp_lab.plan import Model
from pp_lab.schedule import Cost, schedules, simulate

GIB = 2**30
GPT3 = dict(layers=96, hidden=12288, heads=96, sequence=2048, tensor=8)


def first_stage(**more):
    trace = simulate(schedules.interleaved(8, 64, 3), Cost(F=1, B=2))
    return trace.peak_bytes(Model(**GPT3, **more))[0] / GIB


def test_175b_with_p8_v3_t8_holds_41_4_gib_on_its_first_stage_and_12_4_with_selective_recompute():
    assert round(first_stage(), 1) == 41.4
    assert round(first_stage(recompute="selective"), 1) == 12.4
    saved = 1 - first_stage(recompute="selective") / first_stage()
    assert f"{saved:.1%}" == "70.2%"


def test_interleaving_multiplies_memory_by_1_plus_p_minus_1_over_pv():
    model = Model(**GPT3)
    plain = simulate(schedules.one_f_one_b(8, 64), Cost(F=1, B=2)).peak_bytes(model)[0]
    for v in (2, 3, 4):
        more = simulate(schedules.interleaved(8, 64, v), Cost(F=1, B=2)).peak_bytes(model)[0]
        assert more / plain == pytest.approx(1 + 7 / (8 * v))


@pytest.mark.parametrize("p", [1, 2, 4, 8])
def test_1f1bs_first_stage_holds_all_layers_worth_whatever_p(p):
    model = Model(layers=24, hidden=1024, heads=16, sequence=512)
    held = simulate(schedules.one_f_one_b(p, 16), Cost(F=1, B=2)).peak_bytes(model)
    assert held[0] == 24 * model.layer_bytes
    assert sum(held) / p == 24 * (p + 1) / (2 * p) * model.layer_bytes


def test_bytes_per_layer_under_each_way_to_keep_activations():
    s, b, h, a, t = 2048, 1, 12288, 96, 8
    shape, sbh = dict(layers=96, hidden=h, heads=a, sequence=s, microbatch=b), s * b * h
    assert Model(**shape).layer_bytes == sbh * (34 + 5 * a * s / h)
    assert Model(**shape, tensor=t).layer_bytes == sbh / t * (34 + 5 * a * s / h)
    assert Model(**shape, tensor=t, sequence_parallel=False).layer_bytes == sbh * (
        10 + 24 / t + 5 * a * s / (h * t)
    )
    assert Model(**shape, tensor=t, recompute="selective").layer_bytes == 34 * sbh / t
    assert Model(**shape, tensor=t, recompute="full").layer_bytes == 2 * sbh
    assert Model(**shape, sequence_parallel=False).layer_bytes == Model(**shape).layer_bytes


def test_freeing_stage_outputs_saves_2_73_gib_on_the_first_stage_of_530b():
    model = Model(layers=105, hidden=20480, heads=128, sequence=2048, tensor=8)
    assert round(35 * model.output_bytes / GIB, 2) == 2.73


def test_the_convention_decides_how_much_a_split_backward_holds():
    model = Model(layers=8, hidden=64, heads=4, sequence=32)
    trace = simulate(schedules.zb_h1(4, 8), Cost(F=1, B=2))
    w, half, b = (sum(trace.peak_bytes(model, freed)) for freed in ("W", "half", "B"))
    assert w > half > b
    with pytest.raises(KeyError):
        trace.peaks("never")


def test_an_unknown_way_to_recompute_is_refused():
    with pytest.raises(ValueError, match="none, selective or full"):
        Model(**GPT3, recompute="some")
