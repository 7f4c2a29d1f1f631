"""What legacy.py hands to backward and takes from it."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn as nn

from .programs import made, variable


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")  # which is the point
@pytest.mark.parametrize("create_graph", [False, True])
def test_gradients_of_two_inputs_do_not_share_memory(create_graph):
    x, w, upstream = variable(3), variable(3), torch.ones(3).double()
    weight = nn.Parameter(torch.ones(3).double())
    same = made(lambda self, input: input * 1)
    stored = made(lambda self, input: input * 1, lambda self, grad_output: weight)
    (same(x) + stored(w)).backward(upstream, create_graph=create_graph)
    assert x.grad.data_ptr() != upstream.data_ptr() and w.grad.data_ptr() != weight.data_ptr()
    assert not x.grad.requires_grad or create_graph
    x, w = variable(3), variable(3)
    (same(x) + made(lambda self, input: input * 1)(w)).backward(upstream, create_graph=create_graph)
    assert x.grad.data_ptr() != w.grad.data_ptr()


def test_a_stored_tensor_that_backward_returns_gets_no_history():
    x, stored = variable(3), torch.ones(3).double()
    function = made(lambda self, input: input * 1, lambda self, grad_output: stored)
    (gradient,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    assert gradient.requires_grad and not stored.requires_grad


def test_sparse_gradients():
    x, one = variable(3, 3), torch.eye(3).double()
    pick = made(lambda self, x: x * 1, lambda self, g: (g * one).to_sparse())
    same = made(lambda self, x: x * 1)
    (gradient,) = torch.autograd.grad(pick(same(x)).sum(), x)
    assert gradient.is_sparse and torch.equal(gradient.to_dense(), one)


def test_threads_that_share_an_instance_wait_for_each_other():
    inside, most = [], []

    def slow(tensor):
        inside.append(tensor)
        most.append(len(inside))
        time.sleep(0.02)
        inside.pop()
        return tensor * 1

    function = made(lambda self, input: slow(input), lambda self, grad_output: slow(grad_output))
    x = variable(3)
    outputs = [function(x) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: function(x), range(4)))
        list(pool.map(lambda y: y.sum().backward(), outputs))
    assert len(most) == 12 and set(most) == {1}
