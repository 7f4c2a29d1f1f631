"""The CUDA source without a GPU: compiled by NVRTC, and executed on the CPU thread by thread."""

import contextlib
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from helpers.lessons.cuda_on_cpu import emulator, involution
from helpers.lessons.cuda_on_cpu.every_architecture import architectures, compile_for
from helpers.ops.involution import cuda, involution2d, launch, plain
from helpers.ops.involution.geometry import KERNELS, operands
from tests.involution.reference import (
    GEOMETRIES,
    TOLERANCE,
    assert_close,
    channels_last,
    channels_last_with_gaps,
    make_geometry,
    random_cases,
    random_geometries,
    random_tensors,
    with_gaps,
)
from tests.needs import NO_NVRTC, needs_compiler, needs_nvrtc

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
each_kernel = pytest.mark.parametrize("kernel", KERNELS)
ARCHITECTURES = [] if NO_NVRTC else architectures()


# Compiled by NVRTC for every architecture


@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_compiles_and_spills_nothing(architecture):
    # Every type for every architecture; 64-bit indices for the oldest and the newest.
    is_last = architecture in (ARCHITECTURES[0], ARCHITECTURES[-1])
    names = involution.all_names(index=launch.INDEXES if is_last else ["int"])
    kernels = compile_for(architecture, launch.SOURCE, names)
    assert len(kernels) == len(names) == 3 * len(TOLERANCE) * (2 if is_last else 1)
    for name, resources in kernels.items():
        assert resources.spilled_bytes == 0 and resources.stack_bytes == 0, name
        assert 0 < resources.registers <= 128, name  # two blocks of 256 threads fit, at least


# Executed on the CPU


@needs_compiler
@each_kernel
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_cpu_execution_agrees_with_loops_and_plain_pytorch(dtype, kernel):
    function = getattr(involution, kernel)
    for geometry, case, results in random_cases(50, str(dtype), dtype):
        actual = function(*operands(kernel, *case), geometry)
        assert_close(actual, results[KERNELS.index(kernel)], dtype)
        in_pytorch = getattr(plain, kernel)(*operands(kernel, *case), geometry)
        assert_close(actual, in_pytorch.double(), dtype)


@needs_compiler
@each_kernel
def test_64_bit_indices_and_other_blocks_give_the_same(kernel):
    for seed, geometry in enumerate(random_geometries(10, seed=64)):
        arguments = operands(kernel, *random_tensors(geometry, torch.float32, seed))
        expected = getattr(involution, kernel)(*arguments, geometry)
        for options in (
            {"index": "long long"},
            {"block": (256, 1), "index": "long long"},
            {"block": (4, 2)},
            {"block": (1, 1)},
        ):
            if options.get("block") == (1, 1) and expected.numel() > 500:
                continue
            assert getattr(involution, kernel)(*arguments, geometry, **options).equal(expected)


@needs_compiler
@each_kernel
def test_strided_tensors_are_copied(kernel):
    arguments = operands(kernel, *random_tensors(GEOMETRIES[0], torch.float32, 0))
    strided = [t.transpose(-1, -2).contiguous().transpose(-1, -2) for t in arguments]
    assert not strided[0].is_contiguous()
    expected = getattr(involution, kernel)(*arguments, GEOMETRIES[0])
    assert getattr(involution, kernel)(*strided, GEOMETRIES[0]).equal(expected)


@needs_compiler
def test_an_empty_batch_launches_nothing():
    geometry = make_geometry(0, 2, 1, (3, 3), (3, 3), (1, 1), (1, 1), (1, 1))
    case = [torch.zeros(0, 2, 3, 3), torch.zeros(0, 1, 3, 3, 3, 3), torch.zeros(0, 2, 3, 3)]
    for kernel in KERNELS:
        result = launch.launch(kernel, *operands(kernel, *case), geometry, run=None)
        assert result.shape[0] == 0


# Arrays of more than 2^31 elements: each case is (geometry, the kernel whose result is that big).
# The memory is reserved, not used: only the last two blocks run.
HUGE = {
    "forward": make_geometry(1, 65544, 1, (1, 32800), (1, 1), (1, 1), (0, 0), (1, 1)),
    "grad_input": make_geometry(1, 65544, 1, (1, 32800), (1, 1), (1, 1), (0, 0), (1, 1)),
    "grad_weight": make_geometry(1, 1, 1, (1, 98335), (1, 65536), (1, 1), (0, 0), (1, 1)),
}


@needs_compiler
@pytest.mark.parametrize("index", launch.INDEXES)
@pytest.mark.parametrize("kernel", HUGE)
def test_more_than_two_to_the_31_elements(kernel, index):
    geometry = HUGE[kernel]
    sizes = geometry.input_size, geometry.weight_size, geometry.output_size
    case = [torch.empty(size, dtype=torch.float16) for size in sizes]
    arguments = operands(kernel, *case)
    for argument in arguments:
        argument.view(-1)[-40000:] = 2
    arguments[1].view(-1)[:40000] = 2  # the one weight
    chosen = []

    def run_the_last_blocks(name, grid, block, arguments, index):
        chosen.append(index)
        blocks = range(grid[0] - 2, grid[0])
        emulator.run(launch.SOURCE, name, grid, block, arguments, blocks=blocks)

    run = partial(launch.launch, kernel, *arguments, geometry, run_the_last_blocks)
    if index == "long long":
        result = run()  # which chooses 64 bits by itself
        assert chosen == ["long long"] and result.numel() > 2**31
        assert result.view(-1)[-64:].eq(4).all()
    else:
        with pytest.raises(emulator.KernelError):
            run(index="int")


def test_32_bit_indices_are_chosen_up_to_their_limit():
    chosen = []

    def run(name, grid, block, arguments, index):
        chosen.append(index)
        assert name.endswith(f", {index}>")

    for width in (2**20, 2**31 - 2**20 - 1, 2**31 - 2**20):
        geometry = make_geometry(1, 1, 1, (1, width), (1, 1), (1, 1), (0, 0), (1, 1))
        input = torch.empty(geometry.input_size, device="meta")
        weight = torch.empty(geometry.weight_size, device="meta")
        launch.launch("forward", input, weight, geometry, run)
    # few elements, but a padding that no int holds, or the input's far side does not
    for width, padding, stride in ((1, 2**31, 2**33), (2**20, 2**30 - 2**20, 2**30)):
        wide = make_geometry(1, 1, 1, (1, width), (1, 1), (1, stride), (0, padding), (1, 1))
        input = torch.empty(wide.input_size, device="meta")
        launch.launch("forward", input, torch.empty(wide.weight_size, device="meta"), wide, run)
    assert chosen == ["int", "int", "long long", "long long", "long long"]


# The launch through CuPy


def test_without_cupy_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ImportError, match=r"needs CuPy: pip install 'cupy-cuda\d\dx\[ctk\]'"):
        cuda.find_cupy()


@pytest.mark.parametrize("version", [13, 14])
def test_what_cupy_is_asked_for(version, monkeypatch):
    """A CuPy that only takes notes: the module, the stream, the device, and every argument."""
    numpy = pytest.importorskip("numpy")
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
    monkeypatch.setattr(cuda, "find_cupy", lambda: SimpleNamespace(cuda=fake, RawModule=RawModule))
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=1234)
    )
    cuda._function.cache_clear()
    geometry = GEOMETRIES[0]
    input, weight, _ = random_tensors(geometry, torch.bfloat16, 0)
    results = [cuda.forward(input, weight, geometry) for _ in range(2)]
    cuda._function.cache_clear()

    name = "involution2d_forward_fast<__nv_bfloat16, 1, 1, 0, 1, 3, 3, 1, 1, 1, 1>"
    assert [n for n in notes if n[0] == "compiled"] == [("compiled", (name,))]  # once
    assert ("device", None) in notes and ("stream", 1234) in notes
    launched, grid, block, args = notes[-1]
    assert launched == name
    assert grid == (4,) and block == (128, 1)  # 63 pixels of 8 planes
    addresses, structure = args[:3], args[3]
    assert addresses == (input.data_ptr(), weight.data_ptr(), results[1].data_ptr())  # no copies
    assert structure.size == 1 and structure.nbytes == 4 * len(geometry)
    assert numpy.frombuffer(structure.tobytes(), numpy.int32).tolist() == list(geometry)
    strides = [numpy.frombuffer(each.tobytes(), numpy.int32).tolist() for each in args[4:]]
    assert strides[1] == list(weight.stride())
    in_image = [*input.stride()[:2], 0, 0, *input.stride()[2:]]  # and none from tap to tap
    assert strides[::2] == [in_image, in_image]


# With a GPU


@needs_gpu
@each_kernel
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_device_agrees_with_cpu(dtype, kernel):
    for seed, geometry in enumerate(random_geometries(50, seed=str(dtype))):
        case = random_tensors(geometry, dtype, seed)
        expected = getattr(plain, kernel)(*operands(kernel, *case), geometry)
        on_device = operands(kernel, *(t.cuda() for t in case))
        for options in ({"index": "int"}, {"index": "long long"}, {"fast": True}):
            actual = launch.launch(kernel, *on_device, geometry, cuda._run, **options)
            assert_close(actual, expected.double(), dtype)
        for layout in (with_gaps, channels_last, channels_last_with_gaps):
            actual = getattr(cuda, kernel)(*map(layout, on_device), geometry)
            assert_close(actual, expected.double(), dtype)


@needs_gpu
def test_any_stream_and_a_cuda_graph():
    input = torch.randn(2, 16, 9, 9, device="cuda")
    weight = torch.randn(2, 1, 3, 3, 9, 9, device="cuda")
    expected = involution2d(input, weight, padding=1)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10**8)  # the stream is busy: a launch elsewhere would be too early
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


@needs_gpu
def test_another_device_than_the_current_one():
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device")
    input, weight = torch.randn(1, 16, 5, 5), torch.randn(1, 1, 3, 3, 5, 5)
    output = involution2d(input.to("cuda:1"), weight.to("cuda:1"), padding=1)
    torch.testing.assert_close(output.cpu(), involution2d(input, weight, padding=1))
    with pytest.raises(ValueError, match="on one device"):
        involution2d(input.cuda(0), weight.cuda(1), padding=1)
