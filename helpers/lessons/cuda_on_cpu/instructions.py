"""Instructions for each multiply-add, and loads that are under way at once.

NVRTC compiles, nvdisasm turns machine code into text; no GPU is needed.

>>> source = '''
... __global__ void dot(const float* x, const float* y, float* sum, int count) {
...     float total = 0;
...     for (int i = 0; i < count; ++i) total += x[i] * y[i];
...     *sum = total;
... }'''
>>> count(90, source, ["dot"])["dot"].multiply_adds  # doctest: +SKIP
16
"""

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

from helpers.ops.involution.compiler import cached_file

from . import every_architecture

MULTIPLY_ADD = re.compile(r"\b[FD]FMA\b")
LOAD = re.compile(r"\bLD[GS]?\b")
SCOREBOARDS = range(6)  # a load marks one of them until its data are there
SCHEDULERS = 132 * 4  # of an H100; each has room for 16 warps, and 2^14 registers


class Count(NamedTuple):
    """A kernel's inner loop, or all of it where no loop holds a multiply-add.

    The loop is the one with the most multiply-adds in its text; each instruction counts
    once.
    """

    instructions: int
    multiply_adds: int
    loads: int
    outside: int  # instructions that are not in the loop
    # How often a warp waits for data in one pass, if every load takes one time.
    round_trips: int

    @property
    def per_multiply_add(self):
        return self.instructions / self.multiply_adds

    @property
    def loads_in_flight(self):
        """Of one warp, on average while it waits."""
        return self.loads / self.round_trips


def count(architecture, source, names):
    """{name: Count} for the kernels of `source` on one architecture.

    Counts single and double precision. What was counted once is not counted again.
    Raises ImportError without NVRTC or nvdisasm, NvrtcError if the source does not
    compile.
    """
    listed = _listings(architecture, source, names)
    return {name: count_text(text) for name, text in listed.items()}


def resident_warps(threads, registers):
    """How many warps a scheduler of an H100 holds at once, on average, of a kernel.

    threads: of the whole grid. registers: of one thread, as
             `every_architecture.compile_for` says.
    """
    # They are given out by eights.
    room = min(16, 2**16 // 4 // (32 * -(-registers // 8) * 8))
    return min(threads / 32 / SCHEDULERS, room)


def texts(architecture, source, names):
    """{name: what nvdisasm prints} for the same, without the bits of instructions."""
    listed = _listings(architecture, source, names)
    return {
        name: re.sub(r"\n? +/\* 0x[0-9a-f]+ \*/", "", text)
        for name, text in listed.items()
    }


def _listings(architecture, source, names):
    nvdisasm = find_nvdisasm()
    options = every_architecture.options_for(architecture)
    key = [source, *names, *options, every_architecture.version(), nvdisasm]
    build = partial(_disassemble, nvdisasm, architecture, source, names)
    return json.loads(cached_file("sass_*.json", key, build).read_bytes())


def find_nvdisasm():
    """The path of nvdisasm: on PATH, in a CUDA toolkit, or a wheel that brings it."""
    folders = [
        Path(os.environ[name], "bin")
        for name in ("CUDA_PATH", "CUDA_HOME")
        if name in os.environ
    ]
    for package, inside in (("nvidia", "cu13/bin"), ("triton", "backends/nvidia/bin")):
        spec = find_spec(package)
        folders += [
            Path(path, inside)
            for path in (spec.submodule_search_locations if spec else ())
        ]
    path = os.pathsep.join([os.environ.get("PATH", ""), *map(str, folders)])
    found = shutil.which("nvdisasm", path=path)
    if not found:
        raise ImportError(
            "counting instructions needs nvdisasm: pip install nvidia-cuda-nvdisasm"
        )
    return found


def _disassemble(nvdisasm, architecture, source, names, result):
    code, mangled = every_architecture.machine_code(architecture, source, names)
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder, "kernel.cubin")
        binary.write_bytes(code)
        done = subprocess.run(
            [nvdisasm, "-c", "-hex", str(binary)],
            capture_output=True,
            text=True,
            check=True,
        )
    sections = re.split(r"^//-+ \.text\.", done.stdout, flags=re.MULTILINE)[1:]
    texts = {section.split(None, 1)[0]: section for section in sections}
    said = json.dumps({name: texts[mangled[name]] for name in names})
    Path(result).write_text(said, encoding="utf-8")


def count_text(text):
    """The Count for what nvdisasm prints for one kernel."""
    instructions, bits, labels = [], [], {}
    for line in text.splitlines():
        if label := re.match(r"\s*(\.L_\w+):", line):
            labels[label[1]] = len(instructions)
        elif found := re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?)\s*;", line):
            if not found[1].startswith("NOP"):  # what fills the last lines up
                instructions.append(found[1])
                bits.append(NO_WAIT)
        elif (upper := re.fullmatch(r"\s*/\* 0x([0-9a-f]{16}) \*/", line)) and bits:
            bits[-1] = int(upper[1], 16)
    whole = (0, len(instructions))
    loops = [whole]
    for number, instruction in enumerate(instructions):
        target = re.search(r"\bBRA\b.*`\((\.L_\w+)\)", instruction)
        # Backwards; "jump to yourself" ends the text.
        if target and labels[target[1]] < number:
            loops.append((labels[target[1]], number + 1))

    def matches(pattern, loop):
        return sum(bool(pattern.search(text)) for text in instructions[slice(*loop)])

    sums = {loop: matches(MULTIPLY_ADD, loop) for loop in loops}
    inner = [loop for loop in loops if loop != whole and sums[loop]] or [whole]
    most = max(sums[loop] for loop in inner)
    begin, end = min(
        (loop for loop in inner if sums[loop] == most),
        key=lambda loop: loop[1] - loop[0],
    )
    loop = begin, end
    trips = _round_trips(zip(instructions[begin:end], bits[begin:end], strict=True))
    loads = matches(LOAD, loop)
    return Count(end - begin, most, loads, len(instructions) - (end - begin), trips)


NO_WAIT = 7 << 46


def _round_trips(loop):
    """How many times in a row a warp waits in one pass, once the first passes are over.

    All branches but the loop's own are taken for not taken, and all but loads takes no
    time. Since Volta, the bits of an instruction say which scoreboards it waits for,
    and which one it marks: Jia et al., Dissecting the NVIDIA Volta GPU Architecture via
    Microbenchmarking, 2018, https://arxiv.org/abs/1804.06826, section 2.1
    """
    loop = list(loop)
    now, ends, there = 0, [], [0 for _ in SCOREBOARDS]
    for _ in range(8):
        for text, bits in loop:
            now = max([now, *(there[i] for i in SCOREBOARDS if bits >> 52 + i & 1)])
            if LOAD.search(text) and (marked := bits >> 46 & 7) in SCOREBOARDS:
                there[marked] = now + 1
        ends.append(now)
    return ends[-1] - ends[-2]
