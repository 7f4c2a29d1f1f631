"""PyTorch's messages, made short: chapters 09, 10 and 16 show, and compare, how."""

from helpers.lessons import torch_messages


def test_what_raises_nothing_is_said(capsys):
    torch_messages.complaint(lambda: 3)
    assert capsys.readouterr().out == "no complaint: 3\n"


def test_what_differs_from_a_promise_is_said_in_whose_words():
    said = "found other metadata: Dtypes torch.float64 and torch.int8 are not equal!"
    assert torch_messages.in_one_sentence(RuntimeError(said)).endswith(
        "Dtypes torch.float64 of the kernel and torch.int8 of the promise are not "
        "equal."
    )
