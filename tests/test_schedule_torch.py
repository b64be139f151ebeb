"""Interchange with torch.distributed.pipelining: its orders are ours, and its runtime runs them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch_runtime import problem

from pp_lab.schedule import Cost, Move, Pair, Schedule, ScheduleError, lower, schedules, simulate
from pp_lab.schedule import verify as legal

HERE = Path(__file__).parent


def of_torch(name, p, m, v=None, **more):
    """torch's own order of a schedule, as texts."""
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

    return [
        [str(action) for action in row if action is not None]
        for row in get_schedule_ops(name, p, m, v, **more)
    ]


def texts(schedule):
    return [list(map(str, row)) for row in schedule.ranks]


@pytest.mark.parametrize(
    "p, m, v", [(2, 4, 2), (2, 4, 3), (4, 8, 2), (4, 6, 2), (4, 10, 2), (3, 9, 4), (8, 16, 2)]
)
def test_interleaved_is_torchs_order(p, m, v):
    assert texts(schedules.interleaved(p, m, v)) == of_torch("Interleaved1F1B", p, m, v)


@pytest.mark.parametrize("p, m", [(1, 1), (2, 4), (4, 2), (4, 7), (4, 8), (8, 16)])
def test_zb_v_is_torchs_order(p, m):
    assert texts(schedules.zb_v(p, m)) == of_torch("ZBVZeroBubble", p, m, 2)


@pytest.mark.parametrize("p, m", [(1, 2), (2, 4), (3, 7), (4, 8), (4, 10), (8, 32)])
def test_dualpipe_v_is_torchs_order(p, m):
    assert texts(schedules.dualpipe_v(p, m)) == of_torch("DualPipeV", p, m, 2)


def test_torchs_1f1b_numbers_the_last_ranks_forwards_from_1_and_is_refused(tmp_path):
    path = tmp_path / "torch.csv"
    path.write_text("\n".join(map(",".join, of_torch("1F1B", 4, 8))))
    with pytest.raises(ScheduleError, match="3F8 names micro-batch 8|never runs"):
        s = Schedule.from_csv(path)
        legal(Schedule(s.name, s.ranks, s.placement, 8))


@pytest.mark.parametrize(
    "schedule",
    [
        schedules.one_f_one_b(4, 8),
        schedules.interleaved(2, 4, 2),
        schedules.zb_v(3, 5),
        schedules.dualpipe_v(2, 4),
        schedules.dualpipe(4, 8),
        schedules.combined_1f1b(2, 4, 2),
    ],
    ids=lambda s: s.name,
)
def test_a_csv_brings_the_schedule_back_messages_placement_and_all(tmp_path, schedule):
    for each in (schedule, lower(schedule)):
        each.to_csv(tmp_path / "schedule.csv")
        back = Schedule.from_csv(tmp_path / "schedule.csv", name=schedule.name)
        assert back == each
        assert (back.placement, back.microbatches) == (each.placement, each.microbatches)


def test_the_csv_is_the_one_that_torch_writes(tmp_path):
    schedules.dualpipe_v(2, 4).to_csv(tmp_path / "schedule.csv")
    assert (tmp_path / "schedule.csv").read_text().splitlines() == [
        ",".join(row) for row in of_torch("DualPipeV", 2, 4, 2)
    ]


def test_an_empty_cell_is_a_rank_that_idles_and_housekeeping_is_no_op(tmp_path):
    (tmp_path / "s.csv").write_text("0UNSHARD,0F0,,,0B0,0REDUCE_GRAD\n,1F0,1B0,,\n")
    s = Schedule.from_csv(tmp_path / "s.csv", name="read")
    assert texts(s) == [["0F0", "0B0"], ["1F0", "1B0"]]
    legal(s)


@pytest.mark.parametrize(
    "content, reason",
    [
        ("0F0,0B0\n1F0,hello", "row 2, column 2: 'hello' is not an op"),
        ("", "no op in this file"),
        ("0F0,0B0,2F0,2B0", "no rank runs stage 1"),
        ("0F0,0B0\n0F0,0B0", "0F0 is on rank 1, but micro-batch 0 runs stage 0 on rank 0"),
        ("0F0,0F1,0F2,1F1,1B1\n1F0,1F2,1B0", "stage 1 is on the ranks 0 and 1"),
    ],
)
def test_a_csv_that_is_no_schedule_is_refused_at_its_place(tmp_path, content, reason):
    (tmp_path / "s.csv").write_text(content)
    with pytest.raises(ScheduleError, match=reason):
        legal(Schedule.from_csv(tmp_path / "s.csv"))


@pytest.mark.parametrize(
    "name, p, m, v",
    [("Interleaved1F1B", 4, 8, 2), ("ZBVZeroBubble", 4, 8, 2), ("DualPipeV", 4, 8, 2)],
)
def test_the_messages_that_torch_adds_are_ours_and_do_not_block_for_ever(tmp_path, name, p, m, v):
    path = tmp_path / "torch.csv"
    path.write_text("\n".join(map(",".join, of_torch(name, p, m, v, with_comms=True))))
    theirs = Schedule.from_csv(path)
    ours = lower(theirs)
    assert any(isinstance(item, Pair) for item in ours.ranks[0]) == (name == "DualPipeV")
    moves = [
        [{item for item in row if isinstance(item, Move)} for row in s.ranks]
        for s in (theirs, ours)
    ]
    assert moves[0] == moves[1]
    legal(theirs)
    blocking = Cost(F=1, B=2, comm=0.25, blocking=True).split(2)
    assert simulate(ours, blocking).makespan <= simulate(theirs, blocking).makespan


def test_an_exported_1f1b_runs_in_torchs_runtime_with_the_right_gradients(tmp_path):
    p, m = 2, 4
    s = schedules.one_f_one_b(p, m)
    s.to_csv(tmp_path / "compute_only.csv")
    lower(s).to_csv(tmp_path / "compute_comms.csv")
    loopback = "lo" if sys.platform == "linux" else "lo0"
    subprocess.run(
        [
            sys.executable,
            HERE / "torch_runtime.py",
            tmp_path,
            str(p),
            str(m),
            "compute_only",
            "compute_comms",
        ],
        check=True,
        timeout=100,
        env={**os.environ, "GLOO_SOCKET_IFNAME": loopback},
    )
    blocks, x, target = problem(p)
    model = torch.nn.Sequential(*blocks)
    for inputs, targets in zip(x.chunk(m), target.chunk(m), strict=True):
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
    for form in ("compute_only", "compute_comms"):
        for rank, block in enumerate(blocks):
            found = torch.load(tmp_path / f"{form}.{rank}.pt")
            for gradient, parameter in zip(found, block.parameters(), strict=True):
                assert torch.equal(gradient, parameter.grad / m)
