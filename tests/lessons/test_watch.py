"""The list of PyTorch's names: each is told of, where it says, or left out, with its reason."""

from tools import watch


def test_each_name_is_told_of_or_left_out_and_only_one_of_both():
    assert watch.unknown() == []
    assert [*watch.untold()] == []
    listed = watch.words(watch.TOLD) + watch.words(watch.LEFT_OUT)
    assert len(listed) == len(set(listed))
