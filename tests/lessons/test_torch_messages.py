"""PyTorch's messages, made short: chapters 09, 10 and 16 show, and compare, how."""

from helpers.lessons import torch_messages


def test_what_raises_nothing_is_said(capsys):
    torch_messages.complaint(lambda: 3)
    assert capsys.readouterr().out == "no complaint: 3\n"
