"""Try settings of [execution] by real steps in processes of their own, so that running out of memory is a result."""

import json
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from bert_horovod.measuring.child_command import run_command
from bert_horovod.runtime.memory_guard import OUT_OF_MEMORY

Settings = dict[str, Any]  # of [execution], by key

TIME_IS_UP, FAILED = "took too long", "failed"
# Messages for lack of memory: from the memory guard, TensorFlow, C++, Python, and a launcher whose process was killed.
_NO_MEMORY = re.compile(f"{OUT_OF_MEMORY}|ResourceExhausted|OOM when allocating|bad_alloc|MemoryError|SIGKILL")
_LAST_WORDS = 2000  # characters


@dataclass(frozen=True)
class Trial:
    """The result of a try: a step's times, in seconds, or the reason why there are none."""

    step_s: float = float("inf")  # of a whole step of the recipe
    rows_per_s: float = 0.0  # over all ranks
    micro_batch_s: float = 0.0
    update_s: float = 0.0
    reduce_wait_s: float = 0.0
    input_wait_s: float = 0.0
    memory_bytes: int = 0  # peak, the largest over ranks
    failure: str = ""  # OUT_OF_MEMORY, TIME_IS_UP, FAILED; "": there are times
    words: str = ""  # end of the output of a try without times
    wall_s: float = 0.0  # of the whole try


def run_trial(words: Sequence[str], limit_s: float) -> Trial:
    """Run `bert-horovod WORDS`, a `bench throughput --json` or a `launch` of it, for at most `limit_s` seconds."""
    begun = time.monotonic()
    ended = run_command(words, limit_s)
    wall_s = time.monotonic() - begun
    output = "\n".join(filter(None, (ended.output.strip(), ended.errors.strip())))[-_LAST_WORDS:]
    if ended.late:
        return Trial(failure=TIME_IS_UP, words=output, wall_s=wall_s)
    if ended.code == 0:
        measured = json.loads(ended.output.strip().splitlines()[-1])
        known = {field.name for field in fields(Trial)}
        return Trial(**{name: figure for name, figure in measured.items() if name in known}, wall_s=wall_s)
    if ended.code == -signal.SIGKILL or _NO_MEMORY.search(ended.errors):
        return Trial(failure=OUT_OF_MEMORY, words=output, wall_s=wall_s)
    return Trial(failure=FAILED, words=output, wall_s=wall_s)
