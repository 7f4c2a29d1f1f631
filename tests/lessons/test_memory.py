"""`Alive` and `Kept`, which count memory."""

import weakref

import torch

from helpers.lessons.memory import Alive, Kept


def test_alive_counts_storages_until_their_last_user_is_gone():
    old = torch.ones(100)
    with Alive() as alive:
        table = torch.ones(10, 100)
        view = table[0]
        old.add_(1)
        old.view(10, 10)
        assert alive.now == alive.peak == 4000
        del table
        assert alive.now == 4000
        del view
        assert (alive.now, alive.peak) == (0, 4000)
    assert alive.operations == ["ones", "select", "add_", "view"]
    assert alive.history == [4000] * 4
    torch.ones(5)
    assert alive.peak == 4000 and len(alive.history) == 4


def test_alive_sees_backward():
    x = torch.ones(1000, requires_grad=True)
    with Alive() as alive:
        (x.sin() * 2).sum().backward()
    assert "cos" in alive.operations and alive.now == x.grad.nbytes


def test_kept_counts_each_storage_once_and_holds_nothing():
    x, weight = torch.ones(10, 10, requires_grad=True), torch.ones(10, 10, requires_grad=True)
    with Kept(but=[weight]) as kept:
        y = (x * weight).tanh()
        z = y[0] * y[1:2].exp()
    # x, the result of tanh, twice a part of it, and the result of exp, twice
    assert kept.total == 400 + 400 + 40
    assert kept.shapes.count((10, 10)) == 2
    reference = weakref.ref(y.untyped_storage())
    del y, z
    assert reference() is None
