"""What legacy.py hands to backward and takes from it."""

import threading

import pytest
import torch
import torch.nn as nn

from .programs import assert_same, made, variable


def test_backward_may_change_its_gradient_in_place():
    def backward(self, grad_output):
        grad_output[self.input.ge(0)] = 0
        return grad_output

    def forward(self, input):
        self.input = input
        return input.clamp(max=0)

    def loss(f):
        return lambda x: f(x).sum()  # its gradient is one number, expanded

    for size in ((4, 3), (4, 1), (1,), (0, 3)):
        x = variable(*size)
        assert_same(loss(made(forward, backward)), loss(lambda x: x.clamp(max=0)), x)


def test_dimensions_of_size_1_may_be_missing_or_too_many():
    for change in (torch.squeeze, lambda g: g.unsqueeze(0), lambda g: g.view(1, 3, 1)):
        function = made(lambda self, input: input * 2, lambda self, g, f=change: f(g * 2))
        assert_same(function, lambda x: x * 2, variable(3, 1))
    bias = variable(1)
    square = made(lambda self, b: b * b, lambda self, g: g.sum(0).squeeze(0) * 2 * bias.data)
    assert_same(square, torch.square, bias)
    for size in ((4,), (1, 2), (2,)):
        wrong = made(lambda self, input: input * 2, lambda self, g, size=size: torch.ones(size))
        with pytest.raises(RuntimeError, match="MadeBackward returned an invalid gradient at"):
            wrong(variable(2, 2)).sum().backward()


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


@pytest.mark.parametrize("run", ["forward", "backward"])
def test_threads_share_an_instance(run):
    """The first to arrive waits for the second, which changes the state if it is let in."""
    arrived, second_is_in = threading.Event(), threading.Event()

    def stop(step):
        if step == run and not arrived.is_set():
            arrived.set()
            second_is_in.wait(0.3)

    def forward(self, input):
        self.input = input
        if arrived.is_set():
            second_is_in.set()
        stop("forward")
        return self.input**2

    def backward(self, grad_output):
        stop("backward")
        return 2 * self.input * grad_output

    function, inputs, outputs = made(forward, backward), [variable(3), variable(3, seed=1)], {}

    def work(i):
        outputs[i] = function(inputs[i])
        if i == 0 and run == "backward":
            outputs[i].sum().backward()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    threads[0].start()
    assert arrived.wait(10)
    threads[1].start()
    for thread in threads:
        thread.join()
    for i, x in enumerate(inputs):
        assert torch.equal(outputs[i], x**2)
    if run == "backward":
        assert torch.equal(inputs[0].grad, 2 * inputs[0].detach())
    else:
        with pytest.raises(RuntimeError, match="called twice"):
            outputs[0].sum().backward()
        outputs[1].sum().backward()
        assert torch.equal(inputs[1].grad, 2 * inputs[1].detach())
