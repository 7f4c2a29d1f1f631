"""What chapter 10 says of `generate_vmap_rule` and no cell of it shows."""

import torch

from helpers.lessons.exercises.chapter_17 import Product
from helpers.lessons.memory import Alive


class Generated(Product):
    generate_vmap_rule = True


def test_a_generated_rule_makes_the_gradient_of_a_shared_weight_for_each_sample():
    x, weight = torch.randn(7, 1, 3), torch.randn(3, 2, requires_grad=True)
    gradients, each = [], []
    for product in (Generated.apply, torch.matmul):
        with Alive() as alive:
            y = torch.vmap(product, (0, None))(x, weight).sum()
            gradients += torch.autograd.grad(y, weight)
        each.append(any(sorted(shape) == [2, 3, 7] for shape, _ in alive.results))
    torch.testing.assert_close(*gradients)
    assert each == [True, False]
