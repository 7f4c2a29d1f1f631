"""What starts processes: errors come back, and none is left behind."""

import os
import time
from functools import partial

import pytest
import torch.distributed as dist

from helpers.lessons.exercise import RIGHT
from helpers.lessons.exercises import chapter_14
from helpers.lessons.processes import Team, TeamError


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
        team(dist.get_rank)
        started = time.monotonic()
        with pytest.raises(TeamError) as caught:
            team(fails_in, 1, divide)
        assert str(caught.value) == "rank 1: ZeroDivisionError: division by zero"
        assert "in divide" in str(caught.value.__cause__)
        with pytest.raises(
            TeamError, match="rank 2: the process ended with exit code 7"
        ):
            team(fails_in, 2, partial(os._exit, 7))
        assert team(dist.get_rank) == [0, 1, 2]  # started anew
        processes = team.processes
        assert time.monotonic() - started < 10
    assert not any(process.is_alive() for process in processes)


def test_a_team_sees_no_gpu():
    """`fully_shard` would take the GPUs, of which there may be fewer than processes."""
    with Team(1) as team:
        assert team(os.getenv, "CUDA_VISIBLE_DEVICES") == [""]


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


def test_a_team_is_not_sent_to_its_processes():
    team = Team(2)
    with pytest.raises(TypeError, match="cannot be used in its own processes"):
        team(lambda: team(dist.get_rank))
    team.stop()


def prints(times):
    for i in range(times):
        print(f"{i} of {times}")


def test_what_is_printed_comes_rank_by_rank(capsys):
    with Team(2) as team:
        team(prints, 1)
        assert capsys.readouterr().out == "rank 0: 0 of 1\nrank 1: 0 of 1\n"
        team(prints, 1000)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 42 and printed[20] == "rank 0: ... 980 more lines"


def talkative(function, x):
    print("once")
    return chapter_14.wrong_rank(function, x)


def test_an_attempt_at_an_exercise_prints_once(capsys):
    assert chapter_14.EXERCISE_3.judge(talkative).mark == RIGHT
    assert capsys.readouterr().out == "".join(
        f"rank {rank}: once\n" for rank in range(3)
    )
