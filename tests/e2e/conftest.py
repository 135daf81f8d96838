"""One server for all tests of clients that one process runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e.api_server import Api, serve


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with serve(tmp_path_factory.mktemp("api")) as running:
        yield running
