"""How many instructions a kernel spends on each multiply-add, counted in its machine code.

    python -m helpers.lessons.cuda_on_cpu.instructions [--architectures 80 90 120]
                                                       [--dtype float16]

prints it for the three ways in which `helpers/ops/involution` computes an involution on a GPU, at
the sizes of its benchmark. NVRTC compiles, nvdisasm turns machine code into text; no GPU is needed.

>>> source = '''
... __global__ void dot(const float* x, const float* y, float* sum, int count) {
...     float total = 0;
...     for (int i = 0; i < count; ++i) total += x[i] * y[i];
...     *sum = total;
... }'''
>>> count(90, source, ["dot"])["dot"].multiply_adds  # doctest: +SKIP
16
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import tempfile
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch

from helpers.ops.involution import benchmark, launch
from helpers.ops.involution.compiler import cached_file
from helpers.ops.involution.geometry import KERNELS

from . import every_architecture

MULTIPLY_ADD = re.compile(r"\b[FD]FMA\b")
LOAD = re.compile(r"\bLD[GS]?\b")


class Count(NamedTuple):
    """A kernel's inner loop, or all of it where no loop holds a multiply-add.

    The loop is the one with the most multiply-adds in its text; each instruction counts once.
    """

    instructions: int
    multiply_adds: int
    loads: int
    outside: int  # instructions that are not in the loop

    @property
    def per_multiply_add(self):
        return self.instructions / self.multiply_adds


def count(architecture, source, names):
    """{name: Count} for kernels of `source`, template arguments included, on one architecture.

    Counts single and double precision. What was counted once is not counted again. Raises
    ImportError without NVRTC or nvdisasm, NvrtcError if the source does not compile.
    """
    return {name: count_text(text) for name, text in texts(architecture, source, names).items()}


def texts(architecture, source, names):
    """{name: what nvdisasm prints} for the same."""
    nvdisasm = find_nvdisasm()
    options = every_architecture.options_for(architecture)
    key = [source, *names, *options, every_architecture.version(), nvdisasm]
    build = partial(_disassemble, nvdisasm, architecture, source, names)
    return json.loads(cached_file("sass_*.json", key, build).read_text(encoding="utf-8"))


def find_nvdisasm():
    """The path of nvdisasm: on PATH, in a CUDA toolkit, or in a wheel that brings it."""
    folders = [
        Path(os.environ[name], "bin") for name in ("CUDA_PATH", "CUDA_HOME") if name in os.environ
    ]
    for package, inside in (("nvidia", "cu13/bin"), ("triton", "backends/nvidia/bin")):
        spec = find_spec(package)
        folders += [
            Path(path, inside) for path in (spec.submodule_search_locations if spec else ())
        ]
    path = os.pathsep.join([os.environ.get("PATH", ""), *map(str, folders)])
    found = shutil.which("nvdisasm", path=path)
    if not found:
        raise ImportError("counting instructions needs nvdisasm: pip install nvidia-cuda-nvdisasm")
    return found


def _disassemble(nvdisasm, architecture, source, names, result):
    code, mangled = every_architecture.machine_code(architecture, source, names)
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder, "kernel.cubin")
        binary.write_bytes(code)
        done = subprocess.run(
            [nvdisasm, "-c", str(binary)], capture_output=True, text=True, check=True
        )
    sections = re.split(r"^//-+ \.text\.", done.stdout, flags=re.MULTILINE)[1:]
    texts = {section.split(None, 1)[0]: section for section in sections}
    said = json.dumps({name: texts[mangled[name]] for name in names})
    Path(result).write_text(said, encoding="utf-8")


def count_text(text):
    """The Count for what nvdisasm prints for one kernel."""
    instructions, labels = [], {}
    for line in text.splitlines():
        if label := re.match(r"\s*(\.L_\w+):", line):
            labels[label[1]] = len(instructions)
        elif found := re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?)\s*;", line):
            if not found[1].startswith("NOP"):  # what fills the last lines up
                instructions.append(found[1])
    whole = (0, len(instructions))
    loops = [whole]
    for number, instruction in enumerate(instructions):
        target = re.search(r"\bBRA\b.*`\((\.L_\w+)\)", instruction)
        if target and labels[target[1]] < number:  # backwards; "jump to yourself" ends the text
            loops.append((labels[target[1]], number + 1))

    def matches(pattern, loop):
        return sum(bool(pattern.search(text)) for text in instructions[slice(*loop)])

    sums = {loop: matches(MULTIPLY_ADD, loop) for loop in loops}
    inner = [loop for loop in loops if loop != whole and sums[loop]] or [whole]
    most = max(sums[loop] for loop in inner)
    begin, end = min(
        (loop for loop in inner if sums[loop] == most), key=lambda loop: loop[1] - loop[0]
    )
    loop = begin, end
    return Count(end - begin, most, matches(LOAD, loop), len(instructions) - (end - begin))


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m helpers.lessons.cuda_on_cpu.instructions")
    parser.add_argument("--architectures", type=int, nargs="+", default=[80, 90, 120])
    parser.add_argument("--dtype", default="float32", choices=["float32", "float16", "bfloat16"])
    options = parser.parse_args(arguments)
    architectures = options.architectures
    what = f"7 x 7, {options.dtype} (outside of it, once)"
    print(f"instructions per multiply-add in the inner loop, {what}")
    print(f"{'':39}", *(f"{f'sm_{a}':>12}" for a in architectures))
    for label, source, names in cases(getattr(torch, options.dtype)):
        counts = [count(architecture, source, names) for architecture in architectures]
        for name in names:
            cells = [f"{c[name].per_multiply_add:.2f} ({c[name].outside})" for c in counts]
            title = name.split("<")[0].removeprefix("involution2d_")
            print(f"{label:>13}  {title:24}", *(f"{cell:>12}" for cell in cells))


def cases(dtype=torch.float32):
    """(label, source, names) for what the benchmark measures on a GPU."""
    yield "readable", launch.SOURCE, [launch.kernel_name(k, dtype, "int") for k in KERNELS]
    for shape in benchmark.SHAPES:
        batch, channels, size = shape
        geometry = benchmark.geometry_of(*shape)
        label = f"{channels}, {size}²"
        names = [f"constants_{kernel}<{launch.TYPES[dtype]}>" for kernel in KERNELS]
        yield label, benchmark.constants_source(geometry), names
        names = [launch.fast_kernel_name(kernel, dtype, geometry) for kernel in KERNELS]
        yield label, launch.FAST_SOURCE, names
    pack = launch.PACK_BYTES // dtype.itemsize  # the same at every size
    names = [launch.fast_kernel_name(kernel, dtype, geometry, pack) for kernel in KERNELS]
    yield "channels_last", launch.FAST_SOURCE, names


if __name__ == "__main__":
    try:
        main()
    except ImportError as error:
        print(error)
