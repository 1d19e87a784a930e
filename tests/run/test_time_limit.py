"""How the tests are run: within the limit that .ci/run sets, and each file's in one process."""

import re
import subprocess
import sys

import pytest

from tests.horovod_runs import PATIENCE_S, PROJECT, clean_environment

pytestmark = pytest.mark.full

WORDS = ("-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "tests/test_wording.py")


def test_no_test_begins_after_the_time_given_and_the_summary_counts_them():
    command = [sys.executable, *WORDS, "--begin-until", "0"]
    done = subprocess.run(
        command, cwd=PROJECT, env=clean_environment(), capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    (left,) = re.findall(r"^not begun: (\d+) tests, because the time given was over", done.stdout, re.M)
    assert int(left) > 0
    assert f"{left} skipped" in done.stdout
    assert "passed" not in done.stdout


def test_the_tests_of_a_file_are_done_by_one_worker_so_that_they_share_its_fixtures():
    files = ["tests/test_wording.py", "tests/costs/test_exchanges.py", "tests/costs/test_clusters.py"]
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "-v", "-p", "no:cacheprovider", *files]
    done = subprocess.run(
        command, cwd=PROJECT, env=clean_environment(), capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    places = set(re.findall(r"^\[(gw\d)\].* PASSED (\S+?)::", done.stdout, re.M))
    assert sorted(file for _, file in places) == sorted(files)
