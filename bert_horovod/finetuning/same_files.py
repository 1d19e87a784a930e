"""Compare the files of all ranks at the start of a fine-tuning; the error names the file that differs on a host."""

import hashlib
import json
from pathlib import Path
from typing import Any

from bert_horovod.collectives.world import World, from_all_ranks
from bert_horovod.errors import UserError


def require_same_files(files: dict[str, tuple[Path, Any]], world: World) -> None:
    """Raise UserError, on all ranks, if a file's content is not the same on all ranks.

    Args:
        files: by purpose, such as "dev": this rank's path, and the content that it read, which JSON can hold.
        world: the ranks.
    """
    own_digests = {
        name: [str(path), hashlib.sha256(json.dumps(content).encode()).hexdigest()]
        for name, (path, content) in files.items()
    }
    everyone = from_all_ranks([own_digests], world, "digests of files")
    for name in {name: None for of_rank in everyone for name in of_rank}:
        copies = [of_rank.get(name, ["no such file", ""]) for of_rank in everyone]
        different = [rank for rank, (_, digest) in enumerate(copies) if digest != copies[0][1]]
        if different:
            raise UserError(
                f"the {name} file of rank{'s' if different[1:] else ''} {', '.join(map(str, different))} "
                f"({copies[different[0]][0]}) is not that of rank 0 ({copies[0][0]}): "
                "every host needs the same copy of it"
            )
