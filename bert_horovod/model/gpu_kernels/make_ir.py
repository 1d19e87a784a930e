"""Write the texts of Triton's intermediate representation in ir/, from the kernels in source/.

    python -m venv triton && triton/bin/pip install triton==3.1.0 "numpy<2" setuptools
    triton/bin/python -m bert_horovod.model.gpu_kernels.make_ir [DIRECTORY]

An environment of its own, because Triton and TensorFlow in one process crash. It needs no GPU. The text of another
version of Triton may not be what XLA in TensorFlow 2.21 reads.
"""

import re
import sys
from pathlib import Path

import triton
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.compiler.compiler import AttrsDescriptor

from bert_horovod.model.gpu_kernels.catalogue import OPERANDS, Text, all_texts
from bert_horovod.model.gpu_kernels.source import attention, between_products, residual_norm, rotary_attention

MODULES = attention, between_products, rotary_attention, residual_norm


def source_of(text: Text) -> ASTSource:
    """The kernel with the text's constants; all operands are pointers that 16 divides."""
    function = next(getattr(module, text.kernel) for module in MODULES if hasattr(module, text.kernel))
    names = function.arg_names
    signature = {names.index(name): kind for name, kind in OPERANDS[text.kernel].items()}
    constants = {names.index(name): value for name, value in text.constants}
    return ASTSource(function, signature, constants, AttrsDescriptor(tuple(signature), ()))


def intermediate_representation(text: Text, capability: int = 90) -> str:
    """The text, without the places in the source, and as XLA in TensorFlow 2.21 reads it."""
    backend = make_backend(GPUTarget("cuda", capability, 32))
    options = backend.parse_options({"num_warps": text.warps, "num_stages": text.stages})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module = source_of(text).make_ir(options, backend.get_codegen_implementation(), context)
    written = str(backend.make_ttir(module, {}, options))
    written = re.sub(r"^#loc.*\n", "", written, flags=re.MULTILINE)
    written = re.sub(r' loc\((?:#loc\d*|unknown|"[^"]*":\d+:\d+)\)', "", written)
    # A unit attribute in newer versions of Triton.
    return written.replace("{allow_reorder = false}", "").replace("{allow_reorder = true}", "{allow_reorder}")


def main(directory: Path) -> None:
    """Write every text in the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    total = 0
    texts = {text.file_name: text for text in all_texts()}
    for name, text in texts.items():
        written = intermediate_representation(text)
        (directory / name).write_text(written, encoding="utf-8")
        total += len(written)
    print(f"{len(texts)} texts, {total:,} bytes, in {directory}, by Triton {triton.__version__}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("ir"))
