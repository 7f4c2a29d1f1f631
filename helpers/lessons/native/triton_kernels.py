"""Triton kernels that learners write, run by its interpreter, asked of its compiler."""

import contextlib
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from helpers.lessons.language import _


def import_triton():
    """Triton, which interprets kernels on the CPU where there is no GPU."""
    here = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
    with mock.patch.dict(os.environ, here):
        import triton
        import triton.language

        return triton


@contextlib.contextmanager
def watched_loads(arrays):
    """Of Triton's interpreter: a list that receives what is loaded beside `arrays`.

    What a mask leaves out is nan, where no `other` is given.
    """
    from triton.runtime import interpreter

    builder, beside = interpreter.interpreter_builder, []
    load = builder.create_masked_load

    def watched(places, mask, other, *how):
        for place in map(int, places.data[mask.data]):
            name, element, size = min(
                (
                    (name, (place - a.data_ptr()) // 4, a.numel())
                    for name, a in arrays.items()
                ),
                key=lambda it: max(-it[1], it[1] - it[2] + 1),
            )
            if not 0 <= element < size:
                program = builder.grid_idx[0]
                beside.append(
                    _(
                        "program {program} loads {name}[{element}], but {name} has "
                        "{size} elements.",
                        program=program,
                        name=name,
                        element=element,
                        size=size,
                    )
                )
        # (For a single element Triton's interpreter loses an `other` of 0.)
        if (
            other is None
            and places.data.size > 1
            and places.get_element_ty().is_floating()
        ):
            nans = np.full(places.data.shape, np.nan, np.float32)
            other = interpreter.TensorHandle(nans, places.get_element_ty())
        return load(places, mask, other, *how)

    with mock.patch.object(builder, "create_masked_load", watched):
        yield beside


FOR_A_GPU = """
import inspect
import json
import re
import sys
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

{source}

types = {{"x": "*fp32", "weight": "*fp32", "y": "*fp32", "n": "i32"}}
kernel = {name} if hasattr({name}, "fn") else triton.jit({name})
names = inspect.signature(kernel.fn).parameters
types = dict(zip(names, types.values())) | {{name: "constexpr" for name in list(names)[4:]}}
constants = {{name: names[name].default for name in list(names)[4:]}}
try:
    triton.compile(ASTSource(kernel, types, constants), target=GPUTarget("cuda", 90, 32))
except Exception as error:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    arrow = lines.index("^") if "^" in lines else 0
    place = lines[arrow - 1] if arrow else ""
    said = " ".join(lines[arrow + 1 :] if arrow else lines[-1:]) or type(error).__name__
    said = re.sub(r"<function (\\w+) at .*>", r"\\1, which has no @triton.jit", said)
    sys.exit(json.dumps([place, said]))
"""


def _with_what_it_uses(function):
    """A function's text, after the constants, functions and modules that it uses."""
    lines, raw = [], getattr(function, "fn", function)
    for name in raw.__code__.co_names:
        used = raw.__globals__.get(name)
        if inspect.ismodule(used):
            lines.append(f"import {used.__name__} as {name}")
        elif inspect.isfunction(getattr(used, "fn", used)):
            lines.append(_with_what_it_uses(used))
        elif isinstance(used, (int, float)):
            lines.append(f"{name} = {used!r}")
        elif type(used).__name__ == "constexpr":
            lines.append(f"{name} = tl.constexpr({used.value!r})")
    source = textwrap.dedent(inspect.getsource(raw))
    jit = "@triton.jit\n" if function is not raw else ""
    return "\n".join([*lines, jit + source[re.search("^def ", source, re.M).start() :]])


def compiles_for_a_gpu(attempt):
    """In a process of its own, because the interpreter takes more."""
    name = getattr(attempt, "fn", attempt).__name__
    program = FOR_A_GPU.format(source=_with_what_it_uses(attempt), name=name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "program.py")  # a file, for Triton reads the source again
        path.write_text(program, encoding="utf-8")
        here = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        run = subprocess.run(
            [sys.executable, path], capture_output=True, text=True, env=here
        )
    if run.returncode:
        place, said = json.loads(run.stderr.strip().splitlines()[-1])
        if place:
            yield _(
                "Triton's compiler refuses `{place}`: {said}", place=place, said=said
            )
        yield _("Triton's compiler refuses it: {said}", said=said)
