"""PyTorch's messages, made short."""

from helpers.lessons import torch_messages


def test_a_complaint_is_the_cause_in_few_sentences(capsys):
    def fail(text):
        raise RuntimeError(text)

    def printed(call, **options):
        torch_messages.complaint(call, **options)
        return capsys.readouterr().out

    assert printed(lambda: 3) == "no complaint: 3\n"
    long = "It is so. It is such. It is more.\nA second line"
    assert printed(lambda: fail(long)) == "RuntimeError: It is so. It is such. It is more.\n"
    assert printed(lambda: fail(long), sentences=1) == "RuntimeError: It is so.\n"
    nested = (
        "fake tensors\n  Explanation: Failed to run: got ValueError('the cause. Really.')\n more"
    )
    assert printed(lambda: fail(nested)) == "RuntimeError: the cause. Really.\n"
    explained = "Unsupported\n  Explanation: No print here.\n  Hint: remove it"
    assert printed(lambda: fail(explained)) == "RuntimeError: Unsupported. No print here.\n"
    wrapped = printed(lambda: fail("word " * 40)).splitlines()
    assert len(wrapped) == 3
    assert max(map(len, wrapped)) <= 96
