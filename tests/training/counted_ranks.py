"""Run under horovodrun by test_wire_bytes.py: trains, and writes what the kernel saw leave this host in each step."""

import json
import sys
from pathlib import Path

from bert_horovod.collectives.launched import launch
from bert_horovod.collectives.starting import connect
from bert_horovod.corpus.store import open_store
from bert_horovod.recipe_files.loading import load_recipe
from bert_horovod.runtime.devices import use_devices
from bert_horovod.training.hooks.base import Hook, StepEvent
from tests.toy_runs import train_recipe

recipe_file, data_dir, output_dir, interface = sys.argv[1:]
recipe, store = load_recipe(recipe_file), open_store(data_dir)
world = connect(launch(), recipe)
use_devices(world.local_rank, world.local_size, 1)
sent: list[int] = []


def sent_so_far() -> int:
    (line,) = [line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith(interface)]
    return int(line.split(":")[1].split()[8])


class CountBytes(Hook):
    def begin(self, step: int) -> None:
        world.barrier()
        self._before = sent_so_far()

    def step(self, event: StepEvent) -> None:
        sent.append(sent_so_far() - self._before)


train_recipe(recipe, store, Path(output_dir), world, hooks=(CountBytes,))
Path(output_dir, f"sent-{world.rank}.json").write_text(json.dumps(sent))
world.shutdown()
