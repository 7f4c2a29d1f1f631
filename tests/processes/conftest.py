import pytest

from helpers.lessons.processes import Team


@pytest.fixture(scope="module", params=[2, 4])
def team(request):
    """A group of real processes, started once for a file."""
    with Team(request.param, limit=60) as team:
        yield team
