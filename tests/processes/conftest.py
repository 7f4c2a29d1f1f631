import cloudpickle
import pytest

from helpers.lessons.processes import Team
from tests import common
from tests.processes import table


@pytest.fixture(scope="module", autouse=True)
def sent_as_code(request):
    """What is sent to the processes: they do not import the tests."""
    for module in (request.module, table, common):
        cloudpickle.register_pickle_by_value(module)


@pytest.fixture(scope="module", params=[2, 4])
def team(request):
    """A group of real processes, started once for a file."""
    with Team(request.param, limit=60) as team:
        yield team
