"""CUDA kernels on the CPU: the same source, run thread by thread.

It is slow, and it is strict. Every read and write of an array is watched, and the first
one that a device would let pass, or die of, raises a `KernelError` which says who did
what:

- a read or a write outside an array, or a write to one that is `const`;
- a load or store of several elements whose address is no multiple of its size;
- an element of a result that is written twice, or never, or read before it was written;
- an element of an array that the kernel accumulates in, which two threads touch, one of
  them writing, unless both use `atomicAdd` or a `__syncthreads` lies between;
- shared memory that is read before it was written, or that two threads of a block
  touch, one of them writing, with no `__syncthreads` between;
- a `__syncthreads` that only some threads of a block reach, while others wait at
  another one or have returned.

Results and shared memory hold nan before the run. Kernels may use templates,
structures, half precision, blocks of any shape, and `__shared__` arrays of a fixed size
in a kernel that is no template, and `atomicAdd` on an array, but neither other atomics
nor what the threads of a warp tell each other.

>>> source = '''
... __global__ void twice(const float* x, float* y, int count) {
...     int i = blockIdx.x * blockDim.x + threadIdx.x;
...     y[i] = 2 * x[i];  // no bound: the last block has threads to spare
... }'''
>>> x = torch.ones(10)
>>> run(source, "twice", 2, 8, {"x": x, "y": torch.empty(10), "count": 10})  # doctest: +SKIP
Traceback (most recent call last):
    ...
KernelError: thread (2, 0, 0) of block (1, 0, 0) reads x[10], but x has 10 elements
"""

import ctypes
import enum
import mmap
import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

from helpers.lessons.language import N_, _, followed
from helpers.lessons.native.c_and_cpp import compiler_version
from helpers.ops.involution.compiler import cached_file, find_compiler

FOLDER = Path(__file__).parent
HEADERS = "vocabulary.h", "watch.h", "block.h"
FLAGS = [
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-w",
    "-fsanitize=thread",
    "-U_FORTIFY_SOURCE",  # or Ubuntu's ends Python: block.h clears arrays as one
    "-include",
    HEADERS[0],
]
# Without these clang would not watch the read in `a[i] = 2 * a[i]`, and trap a signed
# overflow.
CLANG_FLAGS = [
    "-mllvm",
    "-tsan-instrument-read-before-write",
    "-fno-sanitize=undefined",
]
# Before version 13 it knows no other.
TRAP_OF_GCC = "-fsanitize-undefined-trap-on-error"


# What a thread did wrong, in the order of watch.h, from 1 on.
Fault = enum.IntEnum(
    "Fault",
    "OUTSIDE READ_ONLY WRITTEN_TWICE READ_UNWRITTEN UNKNOWN_MEMORY TRAP TOO_LONG "
    "RACE SHARED_OUTSIDE SHARED_UNWRITTEN DIVERGED MISALIGNED UNORDERED SHARED_ADD",
)
SENTENCES = {
    Fault.OUTSIDE: N_("{who} {verb} {what}, but {name} has {elements}"),
    Fault.READ_ONLY: N_("{who} writes {what}, but {name} is const"),
    Fault.WRITTEN_TWICE: N_("{who} writes {what}, which was written before"),
    Fault.READ_UNWRITTEN: N_(
        "{who} {verb} {what}, which nothing was written to (a pointer to an input is "
        "const)"
    ),
    Fault.UNKNOWN_MEMORY: N_("{who} touches memory that belongs to no array"),
    Fault.TRAP: N_("{who} divides by zero, or uses an invalid address or index"),
    Fault.TOO_LONG: N_("{who} does not end: it was stopped after {seconds:g} seconds"),
    Fault.RACE: N_(
        "{who} {verb} shared memory that thread {other} {does}, with no __syncthreads "
        "between"
    ),
    Fault.SHARED_OUTSIDE: N_("{who} {verb} outside of its arrays in shared memory"),
    Fault.SHARED_UNWRITTEN: N_(
        "{who} {verb} shared memory that nothing was written to"
    ),
    Fault.DIVERGED: N_(
        "{who} waits at the __syncthreads in line {place} of the source, but thread "
        "{other} {does}: a block must meet at one barrier"
    ),
    Fault.MISALIGNED: N_(
        "{who} {verb} {bytes} bytes at {name}[{element}], an address that is no "
        "multiple of {bytes}"
    ),
    Fault.UNORDERED: N_(
        "{who} {verb} {what}, which thread {other} of block {other_block} touches, "
        "too, and nothing orders the two"
    ),
    Fault.SHARED_ADD: N_(
        "{who} adds to shared memory: here, atomicAdd takes an element of an array"
    ),
}
ACTIONS = "read", "write", "add"  # as watch.h numbers them


class KernelError(RuntimeError):
    """A kernel that does not compile, or does what a kernel must not do.

    compiler: what the compiler wrote, if it does not compile
    fault:    what a thread did wrong, a `Fault`, if one did
    thread, block: the indices of that thread, (x, y, z) each
    array, element: the name of the array that it touched, and the index there, if it
                    was one
    """

    compiler = ""
    fault = thread = block = array = element = None

    def __init__(self, sentence, **known):
        super().__init__(sentence)
        vars(self).update(known)


def compiler_says(error, cell):
    """The compiler's first error, without the lines that lead to it.

    error: a `KernelError` of a kernel that does not compile. cell: its source
    """
    first = re.search(r"(?:kernel\.cu:(\d+).*)?error: (.*)", error.compiler)
    if not first:
        return str(error)
    number, said = first.groups()
    place = _(" in line {line} of the cell", line=number) if number else ""
    hint = None
    before = [line for line in cell.splitlines()[: int(number or 0)] if line.strip()]
    if any(re.search(r"[^;{}\s]\s*//.*[;{]\s*$", line) for line in before[-2:]):
        hint = _("In C, `//` begins a comment; `/` divides integers.")
    template = _("it does not compile{place}: {error}")
    if hint:
        template = _("it does not compile{place}: {error}.")
    return followed(template.format(place=place, error=said), hint)


class _Int3(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint) for name in "xyz"]

    def __iter__(self):
        return iter((self.x, self.y, self.z))


class _Array(ctypes.Structure):
    _fields_ = [
        ("begin", ctypes.c_void_p),
        ("count", ctypes.c_longlong),
        ("itemsize", ctypes.c_longlong),
        ("written", ctypes.c_void_p),
        ("touches", ctypes.c_void_p),
    ]


class _Access(ctypes.Structure):
    _fields_ = [
        ("array", ctypes.c_int),
        ("kind", ctypes.c_int),
        ("element", ctypes.c_longlong),
        ("count", ctypes.c_longlong),
    ]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("grid", _Int3),
        ("block", _Int3),
        ("first_block", ctypes.c_longlong),
        ("last_block", ctypes.c_longlong),
        ("seconds", ctypes.c_double),
        ("order", ctypes.c_int),
        ("seed", ctypes.c_int),
        ("array_count", ctypes.c_int),
        ("arrays", ctypes.POINTER(_Array)),
        ("watched_block", _Int3),
        ("watched_thread", _Int3),
        ("watched_capacity", ctypes.c_longlong),
        ("watched_count", ctypes.c_longlong),
        ("watched", ctypes.POINTER(_Access)),
        # the report
        ("fault", ctypes.c_int),
        ("fault_array", ctypes.c_int),  # -1 if it is in none
        ("fault_kind", ctypes.c_int),
        ("fault_element", ctypes.c_longlong),
        ("fault_block", _Int3),
        ("fault_thread", _Int3),
        ("fault_other", _Int3),
        ("fault_other_block", _Int3),
        ("fault_line", ctypes.c_int),
        ("fault_other_line", ctypes.c_int),
        ("fault_bytes", ctypes.c_int),
    ]


def run(
    source,
    kernel,
    grid,
    block,
    arguments,
    watch=None,
    blocks=None,
    seconds=20.0,
    order="any",
    accumulates=(),
):
    """Run a kernel on the CPU, and check each of its accesses to memory.

    source: CUDA C++. kernel: the name of a `__global__` function in it, with template
            arguments if it has some: "twice", "involution2d_forward<float, int>".
    grid, block: an int, or a tuple of up to three, as in a launch on a device.
    arguments: a dict in the order of the kernel's parameters. A pointer takes a
               contiguous CPU tensor. A pointer that is not `const` is a result: it
               starts as nan, must be written exactly once, everywhere, and reaches the
               tensor if all went well; see `accumulates`. An integer or a float takes a
               number, a structure of integers a sequence of them.
    watch: (block, thread), each an index of up to three numbers. `run` then returns
           what this thread did, a list of ("read", "write" or "add", name of the array,
           index), with a range of indices where one load or store moves several; in
           shared memory the name is "__shared__", and the index counts bytes.
    blocks: a range of blocks, to run these alone (results then keep what they held,
            elsewhere).
    seconds: of processor time, after which a kernel counts as endless.
    order: of the threads of a block between two `__syncthreads`. "up" and "down" let
           pass what depends on it, as a device does; "any" names it. A number, from 1
           on, is the seed of a random order of blocks and threads, and names it, too.
    accumulates: the names of arrays that start with what their tensor holds, and whose
                elements are changed as often as the kernel likes.

    Raises KernelError for a kernel that does not compile or breaks a rule,
    CompilerNotFoundError where there is no C++ compiler, TypeError or ValueError for
    arguments that do not fit.
    """
    library = _compile(source, kernel)
    kinds, sizes = _parameters(library)
    if len(kinds) != len(arguments):
        raise ValueError(
            f"arguments must have an entry for each of the {len(kinds)} parameters of {kernel},"
            f" got {list(arguments)}"
        )
    parameters = list(zip(kinds, sizes, arguments.items(), strict=True))
    tensors = {name: value for kind, _, (name, value) in parameters if kind in "rw"}
    for kind, size, (name, value) in parameters:
        if kind in "rw":
            _check_tensor(name, value, size)
    places, arena = _far_apart(tensors)
    values, arrays, written, known = [], [], {}, []
    for kind, size, (name, value) in parameters:
        if kind not in "rw":
            values.append(_plain_value(name, value, kind, size))
            continue
        values.append(ctypes.c_void_p(places[name]))
        flags = touches = None
        if kind == "w":
            # One byte for each element. Anonymous memory is zero, and free until it is
            # touched.
            written[name] = mmap.mmap(-1, max(1, value.numel()))
            flags = _address(written[name])
            if name in accumulates:
                touches = mmap.mmap(-1, max(1, 16 * value.numel()))
            elif blocks is None:
                # Nan in every floating type.
                ctypes.memset(places[name], 0xFF, value.nbytes)
        known.append(touches)  # alive until the kernel has run
        touches = touches and _address(touches)
        arrays.append(_Array(places[name], value.numel(), size, flags, touches))

    request = _Launch()
    request.grid, request.block = _int3("grid", grid), _int3("block", block)
    x, y, z = request.grid
    blocks = blocks or range(x * y * z)
    request.first_block, request.last_block = blocks.start, blocks.stop
    request.seconds = seconds
    request.order = {"up": 1, "down": -1}.get(order, 0)
    request.seed = 0 if isinstance(order, str) else order
    request.array_count, request.fault_array = len(arrays), -1
    request.arrays = (_Array * len(arrays))(*arrays)
    if watch:
        request.watched_block = _Int3(*_triple(watch[0], fill=0))
        request.watched_thread = _Int3(*_triple(watch[1], fill=0))
        request.watched_capacity = 1 << 16
        request.watched = (_Access * request.watched_capacity)()
    pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(v) for v in values])
    library.run_kernel(pointers, ctypes.byref(request))
    if request.fault:
        raise _error(request, tensors)
    for name, flags in written.items():
        missing = (
            flags.find(b"\0", 0, tensors[name].numel())
            if len(blocks) == x * y * z and name not in accumulates
            else -1
        )
        if missing >= 0:
            raise KernelError(_("no thread writes {what}", what=f"{name}[{missing}]"))
        if arena:
            ctypes.memmove(tensors[name].data_ptr(), places[name], tensors[name].nbytes)
    if watch:
        names = [*tensors, "__shared__"]  # its number is -1
        return [
            (ACTIONS[a.kind], names[a.array], _index(a))
            for a in request.watched[: request.watched_count]
        ]


def _index(access):
    end = access.element + access.count
    return access.element if access.count == 1 else range(access.element, end)


def _plain_value(name, value, kind, size):
    if kind == "i" and isinstance(value, int):
        return getattr(ctypes, f"c_int{8 * size}")(value)
    if kind == "f" and isinstance(value, (int, float)):
        return (ctypes.c_float if size == 4 else ctypes.c_double)(value)
    if kind == "s" and isinstance(value, (tuple, list)):
        integer = {4: ctypes.c_int32, 8: ctypes.c_int64}.get(size / max(1, len(value)))
        if integer:
            return (integer * len(value))(*value)
    wanted = {
        "i": "an int",
        "f": "a number",
        "s": f"the integers of a structure of {size} bytes",
    }
    raise TypeError(f"{name} must be {wanted[kind]}, got {value!r}")


def _check_tensor(name, tensor, itemsize):
    if not torch.is_tensor(tensor):
        raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError(f"{name} must be a contiguous CPU tensor")
    if tensor.element_size() != itemsize:
        raise TypeError(
            f"{name} must have elements of {itemsize} bytes, as the kernel declares, got"
            f" {tensor.dtype}"
        )


def _address(memory):
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _far_apart(tensors):
    """Copies of the tensors, so far apart that a wrong index meets no other.

    Returns {name: address}, and the memory that holds them. Huge tensors stay where
    they are.
    """
    if sum(t.nbytes for t in tensors.values()) > 1 << 30:
        return {name: t.data_ptr() for name, t in tensors.items()}, None
    gap = 1 << 26  # bytes, never touched, so never taken from the machine
    offsets, end = {}, gap
    for name, tensor in tensors.items():
        offsets[name] = end + tensor.data_ptr() % 64  # as aligned as it was
        end += -(-tensor.nbytes // 64 + 1) * 64 + gap
    arena = mmap.mmap(-1, end)
    places = {name: _address(arena) + offset for name, offset in offsets.items()}
    for name, tensor in tensors.items():
        ctypes.memmove(places[name], tensor.data_ptr(), tensor.nbytes)
    return places, arena


def _triple(value, fill):
    value = (value,) if isinstance(value, int) else tuple(value)
    return (*value, fill, fill, fill)[:3]


def _int3(name, value):
    triple = _triple(value, fill=1)
    if min(triple) < 1:
        raise ValueError(f"{name} must be 1 or more in each dimension, got {value}")
    return _Int3(*triple)


def _error(request, tensors):
    fault = Fault(request.fault)
    who = {"thread": tuple(request.fault_thread), "block": tuple(request.fault_block)}
    gaps = {
        "who": _("thread {thread} of block {block}", **who),
        "verb": (_("reads"), _("writes"), _("adds to"))[request.fault_kind],
        "does": _("touches") if request.fault_kind else _("writes"),
        "other": tuple(request.fault_other),
        "other_block": tuple(request.fault_other_block),
        "seconds": request.seconds,
        "bytes": request.fault_bytes,
        "place": request.fault_line,
    }
    if fault is Fault.DIVERGED:
        line = request.fault_other_line
        waits = _("waits at another, in line {line}", line=line)
        gaps["does"] = waits if line else _("has returned")
    if request.fault_array >= 0:
        name, element = list(tensors)[request.fault_array], request.fault_element
        who |= {"array": name, "element": element}
        count = tensors[name].numel()
        gaps |= {
            "name": name,
            "element": element,
            "what": f"{name}[{element}]",
            "elements": _("1 element")
            if count == 1
            else _("{count} elements", count=count),
        }
    return KernelError(_(SENTENCES[fault], **gaps), fault=fault, **who)


@cache
def _compile(source, kernel):
    compiler = find_compiler()
    version = compiler_version(tuple(compiler))
    command = [*compiler, *FLAGS, *(CLANG_FLAGS if "clang" in version else [])]
    if "__shared__" in source or "__syncthreads" in source:
        command.append("-DTHREADS_MEET")  # and block.h watches the shared arrays
    else:  # a thread's own arrays, which are on its stack
        trap = "-fsanitize-trap=bounds" if "clang" in version else TRAP_OF_GCC
        command += ["-fsanitize=bounds", trap]
    unit = (
        f'#line 1 "kernel.cu"\n{source}\n#line 1 "emulator.py"\n#include "{HEADERS[1]}"\n'
        'extern "C" int describe_kernel(char* kinds, int* sizes) {\n'
        f"    return describe(&{kernel}, kinds, sizes);\n"
        "}\n"
        'extern "C" void run_kernel(void** arguments, Launch* request) {\n'
        f"    run(&{kernel}, arguments, request);\n"
        "}\n"
    )
    headers = [(FOLDER / name).read_text(encoding="utf-8") for name in HEADERS]

    def build(library):
        with tempfile.TemporaryDirectory() as folder:
            text, binary = Path(folder, "unit.cpp"), str(Path(folder, "unit.o"))
            text.write_text(unit, encoding="utf-8")
            # Two steps: linking with -fsanitize=thread would bring in the sanitizer's
            # own library.
            for step in (
                [*command, f"-I{FOLDER}", "-c", str(text), "-o", binary],
                [*compiler, "-shared", binary, "-o", library],
            ):
                done = subprocess.run(step, capture_output=True, text=True)
                if done.returncode:
                    said = done.stderr.strip()
                    raise KernelError(
                        f"{kernel} does not compile:\n{said}", compiler=said
                    )

    return ctypes.CDLL(
        str(cached_file("kernel_*.so", [unit, *headers, *command, version], build))
    )


def _parameters(library):
    kinds, sizes = ctypes.create_string_buffer(64), (ctypes.c_int * 64)()
    count = library.describe_kernel(kinds, sizes)
    return kinds.raw[:count].decode(), sizes[:count]
