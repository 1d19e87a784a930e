"""What a run says before its first step."""

from bert_horovod.collectives.world import World
from bert_horovod.tasks.pretraining import Pretraining
from bert_horovod.training.announce import inexact_resume, print_start
from tests.toys import toy_recipe


def test_one_rank_is_warned_of_a_method_for_several(capsys):
    print_start(toy_recipe(exchange={"method": "onebit_adam"}), Pretraining(True), World())
    printed = capsys.readouterr()
    assert "bert-horovod: warning: exchange.method = 'onebit_adam' with one rank sends nothing" in printed.err
    assert printed.out.startswith("world: 1 rank(s)")
    print_start(toy_recipe(), Pretraining(True), World())
    assert "one rank" not in capsys.readouterr().err


def test_a_run_says_why_it_cannot_be_resumed_bit_for_bit():
    recipe, fusing = toy_recipe(), toy_recipe(execution={"fusion_bytes": 1 << 20})
    assert inexact_resume(recipe, 8) is None
    assert inexact_resume(fusing, 2) is None
    assert "Horovod fuses" in inexact_resume(fusing, 3)
