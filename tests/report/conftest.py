"""One record for all tests of the report."""

import json

import pytest

from tests.records import honest


@pytest.fixture(scope="session")
def record() -> dict:
    return json.loads(json.dumps(honest()))
