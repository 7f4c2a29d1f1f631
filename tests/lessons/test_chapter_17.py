"""What chapter 17 says of transforms, second derivatives and scales, and no cell of it shows."""

import pytest
import torch
from torch.autograd import Function, grad
from torch.autograd.graph import saved_tensors_hooks


class Declared(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_output_grad_dtype(inputs[0].dtype)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


def test_a_declared_dtype_under_vmap():
    with pytest.raises(RuntimeError, match="number of declarations"):
        torch.vmap(Declared.apply)(torch.ones(2, 3))


class Rounded(Function):
    declared = ()

    @staticmethod
    def forward(ctx, x):
        rounded = x.int()
        ctx.mark_non_differentiable(rounded)
        ctx.set_output_grad_dtype(*Rounded.declared)
        return x.clone(), rounded

    @staticmethod
    def backward(ctx, grad_output, _):
        return grad_output


def test_a_declaration_for_an_output_without_a_gradient(monkeypatch):
    x = torch.ones(1, requires_grad=True)
    monkeypatch.setattr(Rounded, "declared", (torch.float32, None))
    Rounded.apply(x)[0].backward()
    monkeypatch.setattr(Rounded, "declared", (torch.float32, torch.int32))
    with pytest.raises(RuntimeError, match="Pass None for output 1"):
        Rounded.apply(x)


def packed(x):
    with saved_tensors_hooks(torch.Tensor.bfloat16, torch.Tensor.float):
        return x**3


def test_hooks_under_a_function_transform():
    with pytest.raises(RuntimeError, match="don't yet support saved tensor hooks"):
        torch.func.grad(packed)(torch.tensor(2.0))


def test_hooks_in_one_graph():
    compiled = torch.compile(packed, backend="aot_eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="saved_tensors_hooks"):
        compiled(torch.ones(1, requires_grad=True))


class Declares(Function):
    @staticmethod
    def forward(x):
        return x.bfloat16(), x.bfloat16()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_output_grad_dtype(torch.float32, torch.float32)

    @staticmethod
    def backward(ctx, *gradients):
        Declares.dtypes = [gradient.dtype for gradient in gradients]
        return gradients[0].float()


def test_a_declared_dtype_and_an_output_that_nobody_used():
    used, _ = Declares.apply(torch.ones(1, requires_grad=True))
    used.sum().backward()
    assert Declares.dtypes == [torch.float32, torch.bfloat16]


class Cube(Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 3 * x**2


@pytest.mark.parametrize(("enabled", "second"), [(False, 30), (True, 18)])
def test_a_second_derivative_with_cast_inputs(enabled, second):
    x = torch.ones(1, dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        loss = Cube.apply(x).square().sum()
    (first,) = grad(loss, x, create_graph=True)
    assert grad(first.sum(), x)[0].item() == second


def test_a_scaler_refuses_weights_in_float16():
    weight = torch.ones(1, dtype=torch.float16, requires_grad=True)
    optimizer, scaler = torch.optim.SGD([weight]), torch.amp.GradScaler("cpu")
    scaler.scale(weight.sum()).backward()
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        scaler.step(optimizer)
