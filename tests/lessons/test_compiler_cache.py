"""What chapter 09 says of the compiler's cache on disk, and no cell shows."""

import pytest
import torch
from torch import Tensor

from tests.needs import needs_compiler


def compiled_slope(factor):
    @torch.library.custom_op("compiler_cache::cube", mutates_args=())
    def cube(x: Tensor) -> Tensor:
        return x**3

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    cube.register_fake(torch.empty_like)
    cube.register_autograd(
        lambda ctx, grad_output: factor * grad_output * ctx.saved_tensors[0] ** 2,
        setup_context=setup_context,
    )
    torch.compiler.reset()
    x = torch.tensor(1.0, requires_grad=True)
    compiled = torch.compile(lambda x: cube(x), backend="inductor")
    return torch.autograd.grad(compiled(x), x)[0].item()


@needs_compiler
# By this test, on purpose.
@pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled")
def test_the_cache_does_not_notice_another_formula(monkeypatch, tmp_path):
    # Empty, and gone afterwards.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert compiled_slope(2) == 2
    assert compiled_slope(3) == 2
    with torch.compiler.config.patch(force_disable_caches=True):
        assert compiled_slope(3) == 3
