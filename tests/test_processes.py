"""The processes that a notebook and a test start: errors come back, and none is left behind."""

import os
import sys
import time
from functools import partial

import cloudpickle
import pytest
import torch.distributed as dist

from helpers.lessons.processes import Team, TeamError

# What is sent to the processes is sent as code, so that they do not import this file and pytest.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def fails_in(rank, how):
    if dist.get_rank() == rank:
        how()
    dist.barrier()


def divide():
    return 1 / 0


def sleep():
    time.sleep(60)


def test_an_error_comes_with_its_rank_and_traceback():
    with Team(3, limit=10) as team:
        started = time.monotonic()
        with pytest.raises(TeamError) as caught:
            team(fails_in, 1, divide)
        assert str(caught.value) == "rank 1: ZeroDivisionError: division by zero"
        assert "in divide" in str(caught.value.__cause__)
        with pytest.raises(TeamError, match="rank 2: the process ended with exit code 7"):
            team(fails_in, 2, partial(os._exit, 7))
        assert team(dist.get_rank) == [0, 1, 2]  # started anew
        processes = team.processes
        assert time.monotonic() - started < 10
    assert not any(process.is_alive() for process in processes)


def test_a_process_that_hangs_is_ended_and_says_where():
    with Team(2, limit=3, timeout=30) as team:
        team(dist.get_rank)
        processes, started = team.processes, time.monotonic()
        with pytest.raises(TeamError) as caught:
            team(fails_in, 1, sleep)
        assert time.monotonic() - started < 8
    assert "rank 1: no answer in 3 s; the process was ended" in str(caught.value)
    assert "in sleep" in str(caught.value.__cause__)
    assert "in barrier" in str(caught.value.__cause__)
    assert not any(process.is_alive() for process in processes)


def prints():
    print(f"one of {dist.get_world_size()}")


def test_what_is_printed_comes_rank_by_rank(capsys):
    with Team(2) as team:
        team(prints)
    assert capsys.readouterr().out == "rank 0: one of 2\nrank 1: one of 2\n"
