"""The CUDA sources without a GPU, executed on the CPU thread by thread; and with one."""

import contextlib
import itertools
from functools import partial
from types import SimpleNamespace

import numpy
import pytest
import torch

from helpers.lessons.cuda_on_cpu import emulator, every_architecture, involution
from helpers.ops.involution import benchmark, cuda, involution2d, launch, plain
from helpers.ops.involution.geometry import KERNELS, operands
from tests.involution.reference import (
    JUDGES,
    SMALL,
    assert_close,
    case_and_loops,
    channels_last,
    channels_last_with_gaps,
    each_dtype,
    each_kernel,
    make_geometry,
    random_cases,
    random_geometries,
    random_operands,
    random_tensors,
    sizes_of,
    with_gaps,
)
from tests.needs import needs_compiler, needs_nvrtc

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


# Executed on the CPU


@needs_compiler
@each_kernel
@each_dtype
def test_the_readable_kernels_agree_with_loops(dtype, kernel):
    for geometry, case, expected in random_cases(50, dtype):
        actual = getattr(involution, kernel)(*operands(kernel, *case), geometry)
        assert_close(actual, expected[kernel], dtype)


@needs_compiler
@each_kernel
@each_dtype
def test_the_fast_kernels_agree_with_loops(dtype, kernel, monkeypatch):
    monkeypatch.setattr(
        launch, "ENOUGH_THREADS", 1
    )  # two channels a thread, whatever the size
    monkeypatch.setattr(launch, "CHANNELS", (2, 1))
    for name in JUDGES if dtype == torch.float32 else ("window, one group", "stride"):
        case, expected = case_and_loops(JUDGES[name], dtype)
        actual = involution.fast(kernel, *operands(kernel, *case), JUDGES[name])
        assert_close(actual, expected[kernel], dtype)


@needs_compiler
@each_kernel
def test_64_bit_indices_other_blocks_and_strides_give_the_same(kernel):
    run = getattr(involution, kernel)
    for geometry in random_geometries(10, seed=64):
        arguments = random_operands(kernel, geometry)
        expected = run(*arguments, geometry)
        for options in ({"block": (256, 1), "index": "long long"}, {"block": (4, 2)}):
            assert run(*arguments, geometry, **options).equal(expected)
        if expected.numel() < 500:
            assert run(*arguments, geometry, block=(1, 1)).equal(expected)
        across = [t.mT.contiguous().mT for t in arguments]
        assert run(*across, geometry).equal(expected)


def test_an_empty_batch_launches_nothing():
    geometry = SMALL["same size"]._replace(batch=0)
    for kernel in KERNELS:
        case = random_operands(kernel, geometry)
        assert launch.launch(kernel, *case, geometry, run=None).shape[0] == 0


# Arrays of more than 2^31 elements: each case is (geometry, the kernel whose result is
# that big).
# The memory is reserved, not used: only the last two blocks run.
HUGE = {
    "forward": make_geometry(1, 65544, 1, (1, 32800), (1, 1)),
    "grad_input": make_geometry(1, 65544, 1, (1, 32800), (1, 1)),
    "grad_weight": make_geometry(1, 1, 1, (1, 98335), (1, 65536)),
}


@needs_compiler
@each_kernel
def test_more_than_two_to_the_31_elements(kernel):
    case = [torch.empty(size, dtype=torch.float16) for size in sizes_of(HUGE[kernel])]
    arguments = operands(kernel, *case)
    for argument in arguments:
        argument.view(-1)[-40000:] = 2
    arguments[1].view(-1)[:40000] = 2  # the one weight

    def run_the_last_blocks(plan, tensors):
        blocks = range(plan.grid[0] - 2, plan.grid[0])
        launched = launch.SOURCE, plan.name, plan.grid, plan.block
        emulator.run(*launched, plan.arguments(tensors), blocks=blocks)

    run = partial(launch.launch, kernel, *arguments, HUGE[kernel], run_the_last_blocks)
    result = run()  # which chooses 64 bits by itself
    assert result.numel() > 2**31 and result.view(-1)[-64:].eq(4).all()
    with pytest.raises(emulator.KernelError):
        run(index="int")


# The launch through CuPy


@pytest.mark.parametrize("version", [13, 14])
def test_what_cupy_is_asked_for(version, monkeypatch):
    """A CuPy that only takes notes: the module, the stream, the device, and every argument."""
    notes = []

    @contextlib.contextmanager
    def entered(*what):
        notes.append(what)
        yield

    class RawModule:
        def __init__(self, code, options, name_expressions):
            notes.append(("compiled", name_expressions))
            assert code == launch.FAST_SOURCE
            self.names = name_expressions

        def get_function(self, name):
            assert name in self.names
            return lambda grid, block, args: notes.append((name, grid, block, args))

    Stream = SimpleNamespace()
    if version >= 14:
        Stream.from_external = lambda stream: entered("stream", stream.cuda_stream)
    fake = SimpleNamespace(
        Stream=Stream,
        Device=partial(entered, "device"),
        ExternalStream=lambda address, device: entered("stream", address),
    )
    monkeypatch.setattr(
        cuda, "find_cupy", lambda: SimpleNamespace(cuda=fake, RawModule=RawModule)
    )
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=1234)
    )
    cuda._functions.cache_clear()
    monkeypatch.setattr(cuda, "_plans", {})
    geometry = JUDGES["window"]
    input, weight, _ = random_tensors(geometry, torch.bfloat16)
    results = [cuda.forward(input, weight, geometry) for _ in range(2)]
    cuda._functions.cache_clear()

    name = "involution2d_forward_fast<__nv_bfloat16, 1, 1, 0, 1, 3, 3, 1, 1, 1, 1>"
    assert [n for n in notes if n[0] == "compiled"] == [("compiled", (name,))]  # once
    assert len(cuda._plans) == 1
    assert ("device", None) in notes and ("stream", 1234) in notes
    launched, grid, block, args = notes[-1]
    assert launched == name
    assert grid == (4,) and block == (128, 1)  # 63 pixels of 8 planes
    addresses, structure = args[:3], args[3]
    assert addresses == (
        input.data_ptr(),
        weight.data_ptr(),
        results[1].data_ptr(),
    )  # no copies
    assert structure.size == 1 and structure.nbytes == 4 * len(geometry)
    assert numpy.frombuffer(structure.tobytes(), numpy.int32).tolist() == list(geometry)
    strides = [
        numpy.frombuffer(each.tobytes(), numpy.int32).tolist() for each in args[4:]
    ]
    assert strides[1] == list(weight.stride())
    in_image = [
        *input.stride()[:2],
        0,
        0,
        *input.stride()[2:],
    ]  # and none from tap to tap
    assert strides[::2] == [in_image, in_image]


def test_all_that_are_compiled_together_are_loaded_at_once(monkeypatch):
    loaded = []
    module = SimpleNamespace(get_function=loaded.append)
    cupy = SimpleNamespace(RawModule=lambda code, options, name_expressions: module)
    monkeypatch.setattr(cuda, "find_cupy", lambda: cupy)
    cuda._functions.cache_clear()
    for device in (0, 0, 1):
        cuda._functions(("aligned", "shifted"), device, "source")
    cuda._functions.cache_clear()
    assert loaded == ["aligned", "shifted"] * 2  # for each device


@each_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("layout", [torch.Tensor.contiguous, channels_last])
def test_whatever_the_offset_the_kernels_are_compiled_together(layout, dtype, kernel):
    """So what ran at one offset compiles nothing at another, inside a CUDA graph's capture, say."""
    geometry = benchmark.geometry_of(8, 64, 56)
    sizes = operands(kernel, *sizes_of(geometry))
    plans = []
    for offsets in itertools.product(range(8), repeat=2):
        tensors = []
        for size, offset in zip(sizes, offsets, strict=True):
            laid = layout(torch.empty(size, dtype=dtype, device="meta"))
            memory = torch.empty(laid.numel() + 8, dtype=dtype, device="meta")
            tensors.append(memory.as_strided(size, laid.stride(), offset))
        plans.append(launch.plan(kernel, *tensors, geometry, fast=True))
    assert len({plan.name for plan in plans}) > 1
    assert len({plan.names for plan in plans}) == 1
    assert {plan.name for plan in plans} <= set(plans[0].names)


@needs_nvrtc
def test_what_cupy_keeps_on_disk_and_adds_to_the_options(monkeypatch, tmp_path):
    """As `RawModule` compiles for a GPU, without one: only the loading is left out."""
    from cupy.cuda import compiler

    asked, loaded, compile_now = [], [], compiler._compile_using_nvrtc_no_warning

    def compiled(source, options, *others):
        asked.append(options)
        return compile_now(source, options, *others)

    disk = type(compiler._kernel_cache_backend)(str(tmp_path))
    monkeypatch.setattr(compiler, "_kernel_cache_backend", disk)
    monkeypatch.setattr(compiler, "_compile_using_nvrtc_no_warning", compiled)
    monkeypatch.setattr(
        compiler,
        "_get_arch_for_options_for_nvrtc",
        lambda arch: (f"-arch=sm_{arch}", "cubin"),
    )  # asks a device
    module = SimpleNamespace(load=loaded.append)
    module._set_mapping = partial(setattr, module, "mapping")
    monkeypatch.setattr(compiler.function, "Module", lambda: module)
    name = launch.fast_kernel_name("forward", torch.float32, JUDGES["window"])
    options = [
        o for o in every_architecture.options_for(90) if o.startswith(("--std", "-I"))
    ]
    for _ in range(2):
        compiler._compile_module_with_cache(
            launch.FAST_SOURCE, tuple(options), arch="90", name_expressions=(name,)
        )
    assert len(asked) == 1 and loaded[0] == loaded[1]
    assert set(asked[0]) - set(options) == {"-ftz=true"}
    assert "-ftz=true" in every_architecture.options_for(90)  # what is counted, too


# With a GPU


@needs_gpu
@each_kernel
@each_dtype
def test_device_agrees_with_cpu(dtype, kernel):
    for seed, geometry in enumerate(random_geometries(50, seed=str(dtype))):
        case = random_tensors(geometry, dtype, seed)
        expected = getattr(plain, kernel)(*operands(kernel, *case), geometry)
        on_device = operands(kernel, *(t.cuda() for t in case))
        for options in ({"index": "int"}, {"index": "long long"}, {"fast": True}):
            actual = launch.launch(kernel, *on_device, geometry, cuda._run, **options)
            assert_close(actual, expected, dtype)
        for layout in (with_gaps, channels_last, channels_last_with_gaps):
            actual = getattr(cuda, kernel)(*map(layout, on_device), geometry)
            assert_close(actual, expected, dtype)


@needs_gpu
def test_any_stream_and_a_cuda_graph():
    input = torch.randn(2, 16, 9, 9, device="cuda")
    weight = torch.randn(2, 1, 3, 3, 9, 9, device="cuda")
    expected = involution2d(input, weight, padding=1)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(
            10**8
        )  # the stream is busy: a launch elsewhere would be too early
        other = involution2d(2 * input, weight, padding=1)
    stream.synchronize()
    torch.testing.assert_close(other, 2 * expected)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = involution2d(input, weight, padding=1)
    input.mul_(3)
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(captured, 3 * expected)
