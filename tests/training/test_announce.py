"""What a run says before its first step."""

import dataclasses

from bert_horovod.collectives.world import World
from bert_horovod.tasks.pretraining import Pretraining
from bert_horovod.training.peak import print_start
from tests.toys import toy_recipe


def test_one_rank_is_warned_of_a_method_for_several(capsys):
    print_start(toy_recipe(exchange={"method": "onebit_adam"}), Pretraining(True), World())
    printed = capsys.readouterr()
    assert "bert-horovod: warning: exchange.method = 'onebit_adam' with one rank sends nothing" in printed.err
    assert printed.out.startswith("world: 1 rank(s)")
    print_start(toy_recipe(), Pretraining(True), World())
    assert "one rank" not in capsys.readouterr().err


def test_settings_that_an_override_made_idle_are_told(capsys):
    print_start(dataclasses.replace(toy_recipe(), notes=("optimizer.beta_1 = 0.8: idle",)), Pretraining(True), World())
    assert "bert-horovod: note: optimizer.beta_1 = 0.8: idle\n" in capsys.readouterr().out
