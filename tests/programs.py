"""Rank programs that several tests run: right ones."""


def gpipe(rank):
    forwards(rank)
    backwards(rank)


def forwards(rank):
    for i in range(rank.microbatches):
        rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))


def backwards(rank):
    for i in range(rank.microbatches):
        rank.send_backward(i, rank.backward(i, rank.recv_backward(i)))


def one_f_one_b(rank):
    m = rank.microbatches
    warmup = min(rank.size - 1 - rank.index, m)
    for i in range(warmup):
        rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))
    if warmup < m:
        x = rank.recv_forward(warmup)
    for k in range(m - warmup):
        i = warmup + k
        dy = rank.send_forward_recv_backward(i, rank.forward(i, x), k)
        dx = rank.backward(k, dy)
        if i + 1 < m:
            x = rank.send_backward_recv_forward(k, dx, i + 1)
        else:
            rank.send_backward(k, dx)
    for k in range(m - warmup, m):
        rank.send_backward(k, rank.backward(k, rank.recv_backward(k)))
