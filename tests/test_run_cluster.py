"""The same file under torchrun: two agents on loopback stand for two machines."""

import json
import os
import re
import socket
import subprocess
import sys

import pytest

HERE = os.path.dirname(__file__)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def torchrun(*arguments, nodes=1, per_node=2):
    """Run `pp_lab.run` under one torchrun agent per node; (exit code, output) of each."""
    port = free_port()
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    agents = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}",
             f"--node-rank={node}", f"--nproc-per-node={per_node}", "--master-addr=127.0.0.1",
             f"--master-port={port}", "-m", "pp_lab.run", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        )
        for node in range(nodes)
    ]  # fmt: skip
    try:
        return [(agent.communicate(timeout=90)[0], agent.returncode) for agent in agents]
    finally:
        for agent in agents:  # one that is late leaves nothing behind for the tests that follow
            agent.kill()
            agent.communicate()


def test_two_machines_of_two_ranks_run_a_learners_file_and_are_right(tmp_path):
    trace = tmp_path / "trace.json"
    file = os.path.join(HERE, "programs.py")
    (first, code), (second, other) = torchrun(
        file, "--schedule", "one_f_one_b", "-m", "6", "--trace", str(trace), nodes=2
    )
    assert (code, other) == (0, 0), first + second
    assert "one_f_one_b p=4 m=6, cost F=1 B=2, virtual clock: makespan 27" in first
    assert "equal the single-process reference, elementwise: equal to the last bit" in first
    assert "elementwise" not in second, "the first rank speaks for all"
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    assert len(events) == 4 * 6 * 2


def test_two_copies_of_a_pipeline_on_two_machines_average_their_gradients(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from pp_lab import schedules\ndef mine(p, m):\n    return schedules.gpipe(p, m)\n"
    )
    (first, code), (second, other) = torchrun(str(file), "-m", "8", "--dp", "2", nodes=2)
    assert (code, other) == (0, 0), first + second
    assert "p=4 m=8, cost F=1 B=2, virtual clock: makespan 15" in first
    assert "elementwise" in first


def test_a_schedule_generator_runs_on_the_wall_clock(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from pp_lab import schedules\ndef mine(p, m):\n    return schedules.zb_h1(p, m)\n"
    )
    ((output, code),) = torchrun(str(file), "-m", "4", "--clock", "wall")
    assert code == 0, output
    assert "ZB-H1 p=2 m=4, measured, in seconds, wall clock" in output


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["programs.py", "--schedule", "nothing"], "there is no nothing in it"),
    (["programs.py"], "name one with --schedule"),
    (["no_such_file.py"], "cannot read"),
    (["programs.py", "--schedule", "gpipe", "--stages", "3"], "started 1 ranks, .* for 3"),
    (["programs.py", "--schedule", "gpipe", "--backend", "nccl"], "NCCL needs a GPU for every"),
    (["programs.py", "--schedule", "gpipe", "--dp", "0"], "dp=0: give a whole number, 1 at least"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_with_a_sentence(arguments, sentence):
    environment = dict(os.environ, RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    done = subprocess.run(
        [sys.executable, "-m", "pp_lab.run", *arguments], cwd=HERE, env=environment, text=True,
        capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert re.search(sentence, done.stderr)
    assert "Traceback" not in done.stderr


def test_without_torchrun_it_says_how_to_start_it():
    done = subprocess.run(
        [sys.executable, "-m", "pp_lab.run", "programs.py", "--schedule", "gpipe", "--stages", "2"],
        cwd=HERE, text=True, capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "torchrun --nproc-per-node 2 -m pp_lab.run FILE" in done.stderr
