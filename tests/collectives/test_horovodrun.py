"""What horovodrun sends to other hosts."""

import signal
import time

import pytest


def test_a_time_limit_counts_by_the_clock_of_the_host_that_it_reaches(monkeypatch):
    pytest.importorskip("horovod")
    from horovod.runner import launch
    from horovod.runner.common.util import codec
    from horovod.runner.common.util.timeout import Timeout
    from horovod.runner.driver import driver_service

    from bert_horovod.collectives.horovodrun import main

    for place, name in ((signal, "signal"), (driver_service, "get_remote_command"), (Timeout, "__reduce__")):
        monkeypatch.setattr(place, name, getattr(place, name))  # main replaces them
    monkeypatch.setattr(launch, "run_commandline", lambda: None)
    main()
    sent, now = codec.dumps_base64(Timeout(30, "")), time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: now)
    assert codec.loads_base64(sent).remaining() == 30
