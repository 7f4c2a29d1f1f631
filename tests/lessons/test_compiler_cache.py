"""What chapter 09 says of the compiler's cache on disk, and no cell shows."""

import pytest
import torch
from torch import Tensor


def compiled_slope(factor):
    """Of an operator whose gradient is the operator: no kernel has to be built for it."""

    @torch.library.custom_op("compiler_cache::times", mutates_args=())
    def times(x: Tensor, number: float) -> Tensor:
        return number * x

    times.register_fake(lambda x, number: torch.empty_like(x))
    times.register_autograd(lambda ctx, grad_output: (times(grad_output, factor), None))
    torch.compiler.reset()
    x = torch.tensor(1.0, requires_grad=True)
    compiled = torch.compile(lambda x: times(x, 1.0), backend="inductor")
    return torch.autograd.grad(compiled(x), x)[0].item()


# By this test, on purpose.
@pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled")
def test_the_cache_does_not_notice_another_formula(monkeypatch, tmp_path):
    # Empty, and gone afterwards.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert compiled_slope(2.0) == 2
    assert compiled_slope(3.0) == 2
    with torch.compiler.config.patch(force_disable_caches=True):
        assert compiled_slope(3.0) == 3
