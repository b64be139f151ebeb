"""Configurations in bytes and seconds: the papers' figures, and what the sums must keep to."""

from dataclasses import replace

import pytest

from pp_lab.plan import Cluster, Config, Estimate, Model, Network, configurations, ranked
from pp_lab.schedule import Cost, simulate

GIB = 2**30
GPT = Network(layers=96, hidden=12288, heads=96, sequence=2048, vocab=51200)
SMALL = Network(layers=16, hidden=4096, heads=32, sequence=1024, vocab=32000)
MOE = Network(
    layers=61, hidden=7168, heads=128, sequence=4096, vocab=129280, ffn=18432, gated=True,
    tied=False, experts=256, top_k=8, expert_ffn=2048, shared=1, dense=3, nodes=4,
)  # fmt: skip
A100 = Cluster(gpus=64)


def estimate(network=GPT, cluster=A100, **config):
    sizes = dict(tp=8, pp=8, dp=1, m=64) | config
    gpus = sizes["tp"] * sizes["pp"] * sizes["dp"]
    return Estimate(network, replace(cluster, gpus=gpus), Config(**sizes))


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "billions"),
    [
        (24, 2304, 24, 1.7), (30, 3072, 32, 3.6), (36, 4096, 32, 7.5), (40, 6144, 48, 18.4),
        (48, 8192, 64, 39.1), (60, 10240, 80, 76.1), (80, 12288, 96, 145.6),
        (96, 16384, 128, 310.1), (105, 20480, 128, 529.6), (128, 25600, 160, 1008.0),
    ],
)  # fmt: skip
def test_parameters_are_those_of_ptd_ps_table_1(layers, hidden, heads, billions):
    network = Network(layers, hidden, heads, 2048, 51200)
    assert network.parameters / 1e9 == pytest.approx(billions, abs=0.1)
    assert network.active == network.parameters


def test_a_step_of_175b_takes_the_flops_of_ptd_ps_formula_without_recompute():
    tokens, h, s, L, V = 1, 12288, 2048, 96, 51200
    formula = 72 * tokens * L * h**2 * (1 + s / (6 * h) + V / (12 * L * h))
    assert GPT.step_flops == pytest.approx(formula)


def test_a_moe_like_deepseek_v3_has_about_671_billion_parameters_of_which_37_are_active():
    assert MOE.parameters / 1e9 == pytest.approx(671, rel=0.005)
    assert MOE.active / 1e9 == pytest.approx(37, rel=0.03)


def test_an_mlp_of_width_4h_keeps_what_the_formula_without_inner_says():
    for parallel in (True, False):
        shape = dict(layers=8, hidden=64, heads=4, sequence=32, tensor=2)
        plain = Model(**shape, sequence_parallel=parallel)
        assert replace(plain, inner=8 * 64) == replace(plain, inner=512)
        assert replace(plain, inner=8 * 64).layer_bytes == plain.layer_bytes


@pytest.mark.parametrize(("recompute", "gib"), [("none", 41.4), ("selective", 12.4)])
def test_175b_with_t8_p8_v3_keeps_what_the_recompute_paper_says(recompute, gib):
    e = estimate(schedule="interleaved", v=3, recompute=recompute)
    assert round(e.activation_bytes[0] / GIB, 1) == gib


def test_a_parameter_costs_18_bytes_on_one_rank_and_6_plus_12_over_dp_on_several():
    for dp in (1, 4):
        e = estimate(SMALL, tp=2, pp=4, dp=dp, m=8)
        middle = 4 * 12 * 4096**2 / 2
        assert e.state_bytes[1] == middle * (6 + 12 / dp)
        assert e.state_bytes[0] == e.state_bytes[3] == (middle + 32000 * 4096 / 2) * (6 + 12 / dp)


def test_a_tied_embedding_is_on_both_ends_and_once_where_they_are_one():
    def whole(pp, network):
        return sum(others for others, _ in estimate(network, tp=1, pp=pp, m=8).parameters)

    once = 16 * 12 * 4096**2 + 32000 * 4096
    assert whole(1, SMALL) == SMALL.parameters == once
    assert whole(4, SMALL) == whole(1, replace(SMALL, tied=False)) == once + 32000 * 4096


def test_dualpipe_holds_the_parameters_twice_and_v_schedules_once():
    def held(**k):
        return sum(others for others, _ in estimate(SMALL, tp=1, pp=4, m=16, **k).parameters)

    assert held(schedule="DualPipe") == 2 * held()
    assert held(schedule="ZB-V") == held() == held(schedule="interleaved", v=2)


def test_experts_are_spread_over_ep_and_their_optimizer_over_what_is_left():
    e = estimate(MOE, Cluster(2048), tp=2, pp=16, dp=64, m=8, ep=64)
    assert sum(n for _, n in e.parameters) == 58 * 256 / 64 * 3 * 7168 * 2048
    assert e.copies == (64, 2)


@pytest.mark.parametrize("stages", [1, 4, 7, 16, 32])
def test_layers_are_dealt_out_once_each_in_order_and_fewer_to_the_loss(stages):
    cut = MOE.cut(stages)
    assert [layer for layers in cut for layer in layers] == list(range(61))
    counts = list(map(len, cut))
    assert counts[-1] == min(counts) and max(counts) - counts[-1] <= 2


def test_layers_that_divide_are_cut_evenly():
    assert set(map(len, GPT.cut(8))) == {12} and set(map(len, GPT.cut(96))) == {1}


def test_without_links_to_pay_a_step_is_the_simulated_one():
    fast = Cluster(8, flops=1e14, inside=1e30, across=1e30, latency=0)
    network = Network(16, 1024, 8, 512, vocab=1)
    e = Estimate(network, fast, Config(2, 4, 1, 8, 1, recompute="none"))
    F = 4 * 512 * (24 * 1024**2 + 4 * 512 * 1024) / 2 / 1e14
    assert e.step == pytest.approx(11 * 3 * F, rel=1e-3)
    assert e.bubble == pytest.approx(3 / 11, rel=1e-3)
    assert e.efficiency == pytest.approx(8 / 11, rel=1e-3)


def test_full_recompute_costs_another_forward_and_selective_the_attentions_core():
    steps = {way: estimate(recompute=way, dp=2).cost for way in ("none", "selective", "full")}
    assert steps["none"].F == steps["selective"].F == steps["full"].F
    for stage in range(8):
        none, some, full = (steps[way].B[stage] for way in ("none", "selective", "full"))
        assert none < some < 1.05 * none
        assert full == pytest.approx(none + steps["none"].F[stage])


def test_the_sync_of_late_ranks_hides_in_the_bubble_and_that_of_rank_0_does_not():
    e = estimate(SMALL, Cluster(8, across=5e9), tp=2, pp=4, dp=8, m=8)
    ends = [row[-1].start + max(row[-1].end - row[-1].start, s)
            for row, s in zip(e.trace.ranks, e.sync, strict=True)]  # fmt: skip
    assert e.step == pytest.approx(max(ends)) and e.step == pytest.approx(ends[0])
    assert e.trace.makespan < e.step < e.trace.makespan + max(e.sync)


def test_one_replica_has_nothing_to_sync():
    assert estimate().sync == [0] * 8 and estimate().step == estimate().trace.makespan


def test_pairs_hide_all_to_alls_and_ops_pay_for_them():
    def step(**k):
        return estimate(MOE, Cluster(2048), tp=2, pp=16, dp=64, m=64, ep=64, **k)

    pairs, ops = step(schedule="DualPipe"), step()
    assert ops.cost.F == pairs.cost.F and ops.step > 1.2 * pairs.step
    near = estimate(MOE, Cluster(2048), tp=2, pp=16, dp=64, m=64, ep=8)
    assert near.cost.F[3] < ops.cost.F[3] and max(near.state_bytes) > max(ops.state_bytes)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (dict(tp=5), "96 heads cannot be split over tp=5"),
        (dict(pp=32, v=4, schedule="interleaved"), "96 layers do not make 128 stages"),
        (dict(schedule="DualPipe", m=8), "DualPipe needs an even p"),
        (dict(schedule="DualPipe", recompute="full"), "cannot overlap"),
        (dict(ep=16), "must divide tp x dp"),
    ],
)
def test_what_cannot_run_says_why(change, sentence):
    e = estimate(**change)
    assert not e.fits and sentence in e.why


def test_what_does_not_use_all_gpus_or_does_not_fit_says_so():
    wrong = Estimate(GPT, Cluster(1024), Config(8, 8, 8, 16))
    assert wrong.why == "tp x pp x dp = 512 GPUs, and there are 1024"
    full = estimate(recompute="none", b=2)
    assert not full.fits and full.problem is None
    assert "does not fit: rank 0 needs" in full.why
    assert estimate(dp=8).why.startswith("fits: rank 0")


def test_configurations_use_all_gpus_and_the_whole_batch_and_are_all_different():
    cluster = Cluster(16, per_node=4)
    found = list(configurations(SMALL, cluster, 32))
    assert len(set(found)) == len(found) > 100
    for k in found:
        assert k.tp * k.pp * k.dp == 16 and k.dp * k.m * k.b == 32 and k.tp <= 4
        assert Estimate(SMALL, cluster, k).problem is None


def test_ranked_finds_what_looking_at_all_finds():
    cluster = Cluster(16, per_node=4, memory=6 * GIB)
    space = list(configurations(SMALL, cluster, 32, among=("1F1B", "interleaved", "ZB-H1")))
    every = [e for k in space if (e := Estimate(SMALL, cluster, k)).fits]
    assert 0 < len(every) < len(space)
    fastest = sorted(e.step for e in every)[:4]
    assert [e.step for e in ranked(SMALL, cluster, space, count=4)] == fastest
    assert all(e.floor <= e.step * (1 + 1e-12) for e in every)


def test_nothing_fits_where_there_is_no_memory():
    cluster = Cluster(16, memory=GIB)
    assert ranked(SMALL, cluster, configurations(SMALL, cluster, 32)) == []


def test_80_layers_at_p_8_and_m_32_have_the_bubbles_of_the_closed_forms_but_for_the_loss():
    network = Network(80, 12288, 96, 2048, vocab=1)
    fast = Cluster(512, inside=1e30, across=1e30, latency=0)
    for name, v, bubble in (("1F1B", 1, 7 / 39), ("interleaved", 2, 7 / 71)):
        e = Estimate(network, fast, Config(8, 8, 8, 32, 1, name, v))
        assert e.bubble == pytest.approx(bubble, rel=1e-3)
        trace = simulate(e.schedule, Cost(F=1, B=2))
        assert e.activation_bytes[0] == trace.peak_bytes(network.model(e.config))[0]
