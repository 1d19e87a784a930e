"""The texts of ir/ are those that source/ gives, and have the operands that the catalogue names."""

import json
import re
from importlib import resources
from pathlib import Path

import pytest

from bert_horovod.model.gpu_kernels import catalogue
from tests.model.gpu_kernels.triton_environment import run_with_triton

DIRECTORY = resources.files(catalogue.__package__) / "ir"
TEXTS = {text.file_name: text for text in catalogue.all_texts()}
MOST_BYTES = 1_150_000


def test_the_package_has_the_texts_of_the_catalogue_and_no_other():
    written = {path.name: path.read_text(encoding="utf-8") for path in DIRECTORY.iterdir()}
    assert written.keys() == TEXTS.keys()
    assert sum(map(len, written.values())) < MOST_BYTES


@pytest.mark.parametrize("name", TEXTS)
def test_operands_and_results_are_those_of_the_text(name):
    text = TEXTS[name]
    kinds = catalogue.OPERANDS[text.kernel]
    assert tuple(kinds)[-len(catalogue.RESULTS[text.kernel]) :] == catalogue.RESULTS[text.kernel]
    translated = {"*bf16": "bf16", "*fp32": "f32", "*i32": "i32", "*i64": "i64"}
    for dtype in ("bf16", "f16"):
        written = text.read(dtype)
        function = re.search(r"tt\.func public @(\w+)\((.*)\) attributes", written)
        assert function[1] == text.kernel
        pointers = re.findall(r"!tt\.ptr<(\w+)> \{tt\.divisibility = 16 : i32\}", function[2])
        assert pointers == [translated[kind].replace("bf16", dtype) for kind in kinds.values()]
        assert ("bf16" in written) == (dtype == "bf16")


@pytest.mark.full
def test_the_maker_writes_the_same_texts_again(tmp_path):
    run_with_triton("-m", "bert_horovod.model.gpu_kernels.make_ir", tmp_path)
    for name in TEXTS:
        assert (tmp_path / name).read_text(encoding="utf-8") == (DIRECTORY / name).read_text(encoding="utf-8"), name


# Shared memory that a block may have at most (CUDA's programming guide, compute capabilities), and cards that have it.
LIMITS = {(8, 0): 163 << 10, (8, 6): 99 << 10, (8, 9): 99 << 10, (9, 0): 227 << 10}
CARDS = {(8, 0): "A100", (8, 6): "A10, RTX 3090", (8, 9): "L4, RTX 4090", (9, 0): "H100, H200"}
TABLE = Path(__file__).with_name("shared_memory.json")


@pytest.mark.parametrize("capability", LIMITS, ids=CARDS.get)
def test_the_texts_that_a_card_gets_fit_its_shared_memory(capability):
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    compiled_as = "89" if capability == (8, 6) else f"{capability[0]}{capability[1]}"
    needed = {text.file_name: table[text.file_name][compiled_as] for text in catalogue.all_texts((capability,))}
    assert {name: size for name, size in needed.items() if size > LIMITS[capability]} == {}


def test_the_table_of_shared_memory_has_every_text():
    assert json.loads(TABLE.read_text(encoding="utf-8")).keys() == TEXTS.keys()


@pytest.mark.slow
def test_triton_needs_the_shared_memory_of_the_table(tmp_path):
    run_with_triton(TABLE.with_suffix(".py"), tmp_path / "table.json", patience_s=1500)
    assert json.loads((tmp_path / "table.json").read_text()) == json.loads(TABLE.read_text(encoding="utf-8"))
