"""Write the bytes of shared memory that each text of ir/ needs on each capability that gets it, as Triton compiles it.

triton/bin/python tests/model/gpu_kernels/shared_memory.py [TABLE]      five minutes, no GPU; see make_ir.py
"""

import json
import sys
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget

from bert_horovod.model.gpu_kernels.catalogue import CAPABILITIES, Text, all_texts
from bert_horovod.model.gpu_kernels.make_ir import source_of


def shared_bytes(text: Text, capability: tuple[int, int]) -> int:
    options = {"num_warps": text.warps, "num_stages": text.stages}
    target = GPUTarget("cuda", 10 * capability[0] + capability[1], 32)
    return triton.compile(source_of(text), target, options).metadata.shared


if __name__ == "__main__":
    table: dict[str, dict[str, int]] = {text.file_name: {} for text in all_texts()}
    for capability in CAPABILITIES:
        for text in all_texts((capability,)):
            table[text.file_name]["{}{}".format(*capability)] = shared_bytes(text, capability)
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_suffix(".json")
    path.write_text(
        "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(table[name])}" for name in table) + "\n}\n",
        encoding="utf-8",
    )
