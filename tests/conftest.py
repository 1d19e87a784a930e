"""What all tests share: the real text beside the project, where it is present."""

from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The directory with real books and Google's vocabulary; skips where it is absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip("needs ../shared/data (real books and Google's vocabulary), which is not here")
    return SHARED_DATA
