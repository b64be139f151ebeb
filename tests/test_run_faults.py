"""Whatever goes wrong in a run ends in one sentence, in time, with no process left behind.

conftest.py checks after every test that no process is left; here, that the next run works.
"""

import os
import signal
import subprocess
import tempfile
import time

import pytest
import torch
from programs import backwards, forwards, gpipe

import pp_lab as pp
from pp_lab import RunError
from pp_lab.run.failures import NotAttempted

LIMIT = 10  # seconds, the longest wait for an explanation


@pytest.fixture(scope="module")
def lab():
    return pp.Lab(4, 4)


@pytest.fixture(autouse=True)
def in_time_and_the_next_run_works(lab):
    lab.run(gpipe)  # so that no test pays for the start of the server
    began = time.monotonic()
    yield
    assert time.monotonic() - began < LIMIT
    assert lab.check(lab.run(gpipe)) == 1


def explanation(lab, program, **arguments):
    with pytest.raises(RunError) as caught:
        lab.run(program, **arguments)
    return str(caught.value)


def zeros(*shape):
    return torch.zeros(*shape or (4, 16), dtype=torch.float64)


# ---- exceptions


def test_exception_is_shown_once_with_rank_call_and_the_learners_line(lab):
    def program(rank):
        forwards(rank)
        if rank.index == 2:
            {}["nothing"]
        backwards(rank)

    text = explanation(lab, program)
    assert text.startswith("rank 2, after send_forward(3, y): KeyError: 'nothing'")
    assert '{}["nothing"]' in text and "in program" in text
    assert text.count("KeyError") == 1


def helper(rank):
    raise ValueError("from a helper")


def test_traceback_goes_down_into_the_learners_helper_functions(lab):
    text = explanation(lab, lambda rank: helper(rank))
    assert "(and ranks 1, 2, 3 likewise)" in text
    assert 'raise ValueError("from a helper")' in text and "in helper" in text


def test_of_a_check_around_the_learners_function_no_line_is_shown(lab):
    names = {"StepError": pp.run.rank.StepError}
    ours = "def check(answer):\n    def program(rank):\n        answer(rank)\n    return program\n"
    exec(compile(ours, os.path.join(os.path.dirname(pp.__file__), "course", "x.py"), "exec"), names)

    def answer(rank):
        raise ValueError("mine")

    text = explanation(lab, names["check"](answer))
    assert "in answer" in text and 'raise ValueError("mine")' in text
    assert "in program" not in text and "x.py" not in text


def test_first_cause_is_shown_not_what_it_did_to_the_others(lab):
    def program(rank):
        if rank.index == 3:
            rank.recv_forward(0)
            raise ValueError("first")
        forwards(rank)

    assert "rank 3, after recv_forward(0): ValueError: first" in explanation(lab, program)


def test_stub_is_not_attempted(lab):
    def stub(rank):
        raise NotImplementedError

    with pytest.raises(NotAttempted, match="stub is not written yet"):
        lab.run(stub)


def test_misspelt_call(lab):
    assert "no attribute 'recv_foward'" in explanation(lab, lambda rank: rank.recv_foward(0))


def test_exit_is_an_exception_too(lab):
    def program(rank):
        raise SystemExit(3)

    assert "SystemExit: 3" in explanation(lab, program)


# ---- deadlocks and lost messages


def test_deadlock_of_two_sends_names_both_and_what_to_do(lab):
    def program(rank):
        peer = rank.index ^ 1
        rank.send(zeros(), peer)
        rank.recv(zeros(), peer)

    text = explanation(lab, program)
    assert text.startswith(
        "deadlock: rank 0 waits in send(tensor, 1) for rank 1 to receive a tensor; rank 1 waits "
        "in send(tensor, 0) for rank 0 to receive a tensor."
    )
    assert "one must receive first, or send and receive at once" in text


def test_deadlock_of_unfused_1f1b_names_the_micro_batches(lab):
    def program(rank):
        """1F1B whose steady state sends forward before it has received the gradient."""
        warmup = rank.size - 1 - rank.index
        for i in range(warmup):
            rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))
        for k in range(rank.microbatches - warmup):
            i = warmup + k
            rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))
            rank.send_backward(k, rank.backward(k, rank.recv_backward(k)))

    text = explanation(lab, program)
    assert text.startswith("deadlock: ")
    assert "to receive the forward of micro-batch 1" in text
    assert "to receive the backward of micro-batch 0" in text
    assert "rank 3: F0 B0  ! in send_backward(0, dx)" in text


def test_deadlock_of_all_receiving_first(lab):
    def program(rank):
        rank.recv(zeros(), rank.index ^ 1)

    assert "All of these receive first, and nobody has sent" in explanation(lab, program)


def test_deadlock_in_a_ring_names_everybody(lab):
    def program(rank):
        rank.send(zeros(), (rank.index + 1) % 4)
        rank.recv(zeros(), (rank.index - 1) % 4)

    text = explanation(lab, program)
    for r in range(4):
        assert f"rank {r} waits in send(tensor, {(r + 1) % 4})" in text


def test_message_that_is_never_received(lab):
    def program(rank):
        if rank.index == 0:
            rank.send(zeros(), 1)

    assert "rank 1 has ended without receiving it" in explanation(lab, program)


def test_message_that_is_never_sent(lab):
    def program(rank):
        if rank.index == 1:
            rank.recv_forward(0)

    text = explanation(lab, program)
    assert text.startswith(
        "rank 1 waits in recv_forward(0) for the forward of micro-batch 0 from "
        "rank 0, but rank 0 has ended without sending it"
    )


def test_a_rank_that_skips_a_collective(lab):
    def program(rank):
        if rank.index != 3:
            rank.all_reduce(zeros())

    assert "for rank 3 to join in, but rank 3 has ended without calling it" in explanation(
        lab, program
    )


def test_slow_ranks_are_no_deadlock(lab):
    def program(rank):
        time.sleep(0.3 * rank.index)
        gpipe(rank)

    assert lab.check(lab.run(program)) == 1


# ---- endless loops


@pytest.mark.parametrize("language", ["Python", "C"])
def test_endless_loop_is_ended_and_located(lab, language):
    def program(rank):
        forwards(rank)
        if rank.index == 1:
            if language == "C":
                sum(iter(int, 1))  # an endless loop that never lets another thread run
            while True:
                pass
        backwards(rank)

    text = explanation(lab, program, timeout=1.5)
    assert "took longer than its limit of 1.5 s" in text
    assert "rank 1 is still at work, after send_forward(3, y). An endless loop?" in text
    assert "in program" in text
    assert "rank 0: waits in recv_backward(0)" in text


# ---- wrong messages


@pytest.mark.parametrize(
    ("tensor", "got"),
    [
        (zeros(4, 8), "shape [4, 8], torch.float64"),
        (zeros(16, 4), "shape [16, 4], torch.float64"),  # as many bytes
        (
            zeros(4000, 900),
            "shape [4000, 900], torch.float64",
        ),  # more than any receiver has room for
        (zeros().float(), "shape [4, 16], torch.float32"),
        (torch.zeros(4, 16, dtype=torch.int64), "shape [4, 16], torch.int64"),  # as many bytes
        (zeros(0), "shape [0], torch.float64"),
    ],
)
def test_shape_or_dtype_that_was_not_declared(lab, tensor, got):
    def program(rank):
        if rank.index == 0:
            rank.send(tensor, 1)
        if rank.index == 1:
            rank.recv_forward(0)

    text = explanation(lab, program)
    assert text.startswith("rank 1, in recv_forward(0): ")
    assert "into a tensor of shape [4, 16], torch.float64, but rank 0 sent " + got in text


@pytest.mark.parametrize(
    ("send", "sentence"),
    [
        (lambda rank: rank.send(zeros(16, 4).t(), 1), "not contiguous.*call .contiguous"),
        (
            lambda rank: rank.send_forward(0, None),
            "takes a tensor, not NoneType: is a return missing",
        ),
        (lambda rank: rank.send(zeros(), rank.previous), "None is no rank.*the first no previous"),
        (lambda rank: rank.send(zeros(), 4), "dst=4 is no rank; ranks are 0 to 3"),
        (lambda rank: rank.send(zeros(), 0), "rank 0 cannot exchange messages with itself"),
        (lambda rank: rank.send(zeros(*[1] * 200), 1), "200 dimensions is too much"),
        (lambda rank: rank.batch_isend_irecv([zeros()]), "takes a list of P2POp"),
        (lambda rank: pp.P2POp(rank.forward, zeros(), 1), "P2POp takes rank.isend or rank.irecv"),
        (lambda rank: rank.recv_forward(4), "there is no micro-batch 4: they are 0 to 3"),
        (lambda rank: rank.recv_forward("a"), "there is no micro-batch 'a'"),
    ],
)
def test_calls_that_make_no_sense(lab, send, sentence):
    def program(rank):
        if rank.index == 0:
            send(rank)

    with pytest.raises(RunError, match=f"(?s)rank 0, .*{sentence}"):
        lab.run(program)


def test_messages_in_another_order_than_they_were_sent(lab):
    def program(rank):
        if rank.index == 0:
            for i in range(4):
                rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))
        if rank.index == 1:
            rank.recv_forward(1)

    text = explanation(lab, program)
    assert "the next message that rank 0 sent is the forward of micro-batch 0" in text
    assert "receive them in that order" in text


def test_with_tags_the_order_of_receives_is_free():
    def program(rank):
        m = rank.microbatches
        if rank.index == 0:
            requests = [
                rank._isend(rank.forward(i, rank.recv_forward(i)), 1, "F", i) for i in range(m)
            ]
            for i in range(m):
                rank.backward(i, rank.recv_backward(i))
            for request in requests:
                request.wait()
        else:
            xs = {i: rank.recv_forward(i) for i in reversed(range(m))}
            for i in range(m):
                rank.forward(i, xs[i])
            for i in range(m):
                rank.send_backward(i, rank.backward(i, None))

    lab = pp.Lab(2, 4)
    assert lab.check(lab.run(program, tags=True)) == 1
    with pytest.raises(RunError, match="is the forward of micro-batch 0"):
        lab.run(program, tags=False)


def test_request_that_nobody_waited_for(lab):
    def program(rank):
        gpipe(rank)
        if rank.index == 0:
            rank.isend(zeros(), 1)
        if rank.index == 1:
            rank.recv(zeros(), 0)

    assert "rank 0 ended, but never waited for its isend of a tensor to rank 1" in explanation(
        lab, program
    )


@pytest.mark.parametrize("received", [False, True])
def test_tensor_that_changed_after_it_was_sent(lab, received):
    def program(rank):
        if rank.index == 0:
            tensor = zeros()
            request = rank.isend(tensor, 1)
            if received:
                rank.recv(tensor, 1)
            else:
                tensor += 1
            request.wait()
        if rank.index == 1:
            rank.recv(zeros(), 0)
            if received:
                rank.send(zeros(), 0)

    assert "was changed before its wait()" in explanation(lab, program)


# ---- wrong steps


def forward_twice(rank):
    forwards(rank)
    if rank.index == 1:
        rank.forward(2, zeros())


def backward_twice(rank):
    gpipe(rank)
    if rank.index == 1:
        rank.backward(2, zeros())


def backward_first(rank):
    rank.backward(0, None if rank.is_last else zeros())


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        (forward_twice, "forward of micro-batch 2 was done before on this rank"),
        (backward_twice, "backward of micro-batch 2 was done before on this rank"),
        (backward_first, "backward of micro-batch 0, but its forward has not run"),
        (lambda rank: rank.forward(0, None), "needs its input, a tensor, but got None"),
        (lambda rank: rank.forward(0, zeros(3, 3)), r"needs its input, shape \[4, 16\], but got"),
    ],
)
def test_steps_out_of_place(lab, program, sentence):
    with pytest.raises(RunError, match=sentence):
        lab.run(program)


def detached(rank, i, x):
    y = rank.module(x.detach())
    return rank.loss(i, y) / rank.microbatches if rank.is_last else y


def no_loss(rank, i, x):
    x.requires_grad_()
    return rank.module(x)


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        (dict(forward_step=detached), "Was the input detached, or requires_grad_.. forgotten"),
        (
            dict(forward_step=no_loss),
            "the forward of 3F0 gave shape .4, 16., not the loss, a scalar",
        ),
        (dict(forward_step=lambda rank, i, x: None), "gave None, not"),
        (dict(backward_step=lambda rank, i, x, y, dy: None), "the backward of 3B0 gave None"),
    ],
)
def test_wrong_steps(lab, steps, sentence):
    with pytest.raises(RunError, match=sentence):
        lab.run(gpipe, **steps)


def test_forgotten_micro_batch_is_named_by_the_check(lab):
    def program(rank):
        for i in range(3):
            rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))
        for i in range(3):
            rank.send_backward(i, rank.backward(i, rank.recv_backward(i)))

    score = lab.check(lab.run(program))
    assert score == 0
    assert "rank 0 never ran the forward of micro-batch 3" in str(score)


# ---- dead ranks


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        (
            lambda: os.kill(os.getpid(), signal.SIGKILL),
            "rank 2 was killed by SIGKILL after send_fo",
        ),
        (os.abort, "rank 2 was killed by SIGABRT"),
        (lambda: os._exit(3), "rank 2 ended with exit code 3 after send_forward.*without a Python"),
    ],
)
def test_dead_rank_is_named_not_its_followers(lab, end, sentence):
    def program(rank):
        forwards(rank)
        if rank.index == 2:
            end()
        backwards(rank)

    with pytest.raises(RunError, match=sentence):
        lab.run(program)


def test_function_that_cannot_be_sent_to_a_process(lab):
    file = open(os.devnull, "w")  # noqa: SIM115 - that it stays open is the point

    def program(rank):
        print("x", file=file)

    try:
        text = explanation(lab, program)
    finally:
        file.close()
    assert "the function cannot be sent to the ranks" in text
    assert "make that inside the function" in text


def test_module_that_a_rank_cannot_import(lab):
    def program(rank):
        import no_such_module  # noqa: F401

    assert "ModuleNotFoundError: No module named 'no_such_module'" in explanation(lab, program)


# ---- the machine


def test_out_of_memory_in_a_rank(lab):
    def program(rank):
        if rank.index == 1:
            torch.empty(10**15)
        gpipe(rank)

    text = explanation(lab, program)
    assert text.startswith("rank 1, at its start: RuntimeError: ")
    assert "memory" in text and "torch.empty(10**15)" in text


def test_no_folder_to_meet_in(lab, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert "Set TMPDIR to a folder that exists" in explanation(lab, gpipe)


@pytest.mark.parametrize("options", ["ro", "size=4k"])
def test_a_temporary_folder_that_is_read_only_or_full(lab, monkeypatch, tmp_path, options):
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", str(tmp_path)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system takes root")
    try:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        text = explanation(lab, gpipe)
        assert "Read-only file system" in text or "No space left" in text
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_a_batch_that_one_side_leaves_half_undone(lab):
    def program(rank):
        peer = rank.index ^ 1
        ops = [pp.P2POp(rank.irecv, zeros(), peer)]
        if rank.index % 2:
            ops.append(pp.P2POp(rank.isend, zeros(), peer))
        for request in rank.batch_isend_irecv(ops):
            request.wait()

    text = explanation(lab, program)
    assert "rank 1 waits in wait() of irecv for a tensor from rank 0" in text
    assert "rank 0 has ended without sending it" in text


def test_a_message_that_is_sent_twice(lab):
    def program(rank):
        gpipe(rank)
        if rank.index == 0:
            rank.send_forward(3, zeros())

    text = explanation(lab, program)
    assert "rank 0 waits in send_forward(3, tensor)" in text or "send_forward(3, y)" in text
    assert "rank 1 has ended without receiving it" in text


def test_a_tensor_on_another_device(lab):
    def program(rank):
        if rank.index == 0:
            rank.send(torch.empty(3, device="meta"), 1)

    assert "on meta, but this run's ranks exchange tensors on cpu" in explanation(lab, program)


def test_a_killed_server_is_started_again(lab):
    import psutil

    servers = [
        child
        for child in psutil.Process().children()
        if child.status() != psutil.STATUS_ZOMBIE
        and "multiprocessing.forkserver" in " ".join(child.cmdline())
    ]
    for server in servers:
        server.kill()
    time.sleep(0.3)  # it takes a moment to die
    assert lab.check(lab.run(gpipe)) == 1
    assert servers


def test_ranks_that_have_all_ended_are_in_no_deadlock():
    """The parent may look between the last report and its own next step, however long that is."""
    from pp_lab.run import failures

    assert failures.deadlock(["done", "done"], tags=True) is None
