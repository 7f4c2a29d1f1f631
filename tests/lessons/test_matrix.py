"""Chapter 19's matrix: what stands for C++ in it, what the chapter says to its rows."""

import re

import nbformat
import pytest
import torch
from torch.utils.cpp_extension import load_inline

from helpers.lessons.index import matrix
from tests.needs import needs_builder
from tools.which_way import CHAPTER

CPP = """
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

using torch::stable::Tensor;

Tensor kernel(Tensor x) {
    return torch::stable::clone(x);
}

STABLE_TORCH_LIBRARY(which_way, m) {
    m.def("in_cpp(Tensor x) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(which_way, CPU, m) {
    m.impl("in_cpp", TORCH_BOX(&kernel));
}
"""


@pytest.fixture
def in_cpp(tmp_path):
    """An operator whose schema and kernel are in C++.

    The rest of it is that of `matrix.defined`.
    """
    load_inline(
        "which_way",
        CPP,
        no_implicit_headers=True,
        is_python_module=False,
        build_directory=tmp_path,
    )
    op = matrix.with_rules(torch.ops.which_way.in_cpp.default)
    torch.library.register_autograd(op, lambda ctx, grad_output: -grad_output)
    return op


@needs_builder
def test_an_operator_in_cpp_does_what_one_of_define_and_impl_does(in_cpp, monkeypatch):
    monkeypatch.setitem(matrix.WAYS, "C++", in_cpp)
    with matrix.process_group():
        for situation in matrix.SITUATIONS:
            of_python, of_cpp = (
                matrix.verdict(way, situation) for way in ("define and impl", "C++")
            )
            assert of_cpp == of_python, situation


def test_the_chapter_explains_each_row_that_is_not_right_everywhere():
    cells = {cell.id: cell for cell in nbformat.read(CHAPTER, as_version=4).cells}
    printed = re.findall(
        r"^(\w.{19}) .*(?:error|WRONG)", cells["w07"].outputs[0].text, re.MULTILINE
    )
    rows = re.findall(
        r"^\| (`.+?`) \|.*\| \[.+\) \|$", cells["w11"].source, re.MULTILINE
    )
    explained = [name for row in rows for name in re.findall("`(.+?)`", row)]
    assert sorted(explained) == sorted(name.strip() for name in printed)
