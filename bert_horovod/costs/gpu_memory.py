"""Memory of a GPU that TensorFlow's allocator may take: the data sheet's size, less what others hold.

    allocatable = size * VISIBLE (* 15/16 with ECC in the memory) - context - reserve

- Visible: CUDA reports a little less than the data sheet has; GDDR memory with error correction, which is on in the
  data centre's cards as delivered, keeps 1/16 for it. A T4 of 16 GB shows 14.75 GiB.
- Context: CUDA's context of the process with the libraries' handles, when TensorFlow starts. More kernels are loaded
  when used (CUDA_MODULE_LOADING=LAZY, CUDA's default since 12.2) and go to the reserve.
- Reserve: what TensorFlow leaves to others: MinSystemMemory in its gpu_device.cc, by compute capability. There
  - cuBLAS has its own workspace, 4 MiB or on Hopper 32 MiB for each handle and stream (cuBLAS, cublasSetWorkspace);
  - NCCL has buffers: for each channel and each peer that it receives from NCCL_BUFFSIZE = 4 MiB, beside 0.5 and 4.7 MiB
    for its protocols LL and LL128 (NCCL's headers). With a ring and two trees these are four peers: 74 MiB with 2
    channels (PCIe, Ethernet), 880 MiB with 24 (NVLink). With HOROVOD_HIERARCHICAL_ALLREDUCE there are more.

TensorFlow prints the result as it starts: "Created device ... with N MB memory". tests/costs/test_gpu_memory.py has
such lines.
"""

import re

from bert_horovod.costs.gpus import compute_capability

MIB = 1 << 20
VISIBLE = 0.984
ECC_SHARE = 1 / 16
_GDDR_WITH_ECC = re.compile(r"\b(T4|A10|A40|L4|L40S?)\b", re.IGNORECASE)
_CONTEXT = {7: 350 * MIB, 8: 700 * MIB, 9: 700 * MIB}  # by major compute capability
_RESERVE = {7: 1050 * MIB, 8: 1536 * MIB, 9: 1800 * MIB}


def allocatable_bytes(size_bytes: float, name: str) -> float:
    """Bytes that TensorFlow's allocator may take.

    Args:
        size_bytes: of the memory, as the data sheet has it.
        name: the GPU's; of an unknown one the most is taken off.
    """
    visible = size_bytes * VISIBLE * (1 - ECC_SHARE if _GDDR_WITH_ECC.search(name) else 1)
    major, _ = compute_capability(name) or (9, 0)
    return max(0.0, visible - _CONTEXT[major] - _RESERVE[major])
