"""Methods of other packages: found when they are asked for, passed over if they cannot be read, refused if taken."""

import sys

import pytest

from bert_horovod.errors import UserError
from bert_horovod.optimizers.adamw import AdamW
from bert_horovod.optimizers.lamb import Lamb
from bert_horovod.recipe.methods_found import Methods, is_experiment, package_of
from bert_horovod.recipe.sections import Optimizer
from tests.other_package import METHODS, install


@pytest.fixture
def rules(monkeypatch, tmp_path):
    """Makes rules beside which a package with these entry points is installed."""

    def make(methods: str = METHODS) -> Methods:
        monkeypatch.syspath_prepend(install(tmp_path / "site", methods=methods))
        for module in ("toy_rule", "toy_method"):
            monkeypatch.delitem(sys.modules, module, raising=False)
        return Methods(Optimizer, "name", (AdamW, Lamb))

    return make


def test_a_package_is_read_when_a_name_is_not_the_programs_own(rules):
    found = rules()
    assert found["lamb"] is Lamb
    assert "sign_momentum" not in list(found)
    assert "toy_rule" not in sys.modules
    kind = found["sign_momentum"]
    assert kind(length=2.0).length == 2.0
    assert "sign_momentum" in list(found)
    assert "scaled_gradients" not in found  # of another section
    assert (package_of(kind), package_of(Lamb), is_experiment(kind)) == ("toy 1.0", "", False)


def test_one_that_cannot_be_imported_is_named_and_passed_over(rules):
    found = rules(f"broken = no_such_module:Rule\nlost = toy_rule:Lost\n{METHODS}")
    assert "sign_momentum" in found.names()
    missing, lost = found.problems
    assert missing == "toy 1.0 could not be read: ModuleNotFoundError: No module named 'no_such_module'"
    assert "toy 1.0 could not be read: AttributeError: " in lost
    assert found.hint().endswith(f"; {missing}; {lost}")


@pytest.mark.parametrize("taken", ["lamb", "sign_momentum"])
def test_a_name_that_is_taken_is_refused(rules, taken, monkeypatch):
    found = rules(f"{METHODS}again = toy_rule:{'Taken' if taken == 'lamb' else 'SignMomentum'}\n")
    import toy_rule

    monkeypatch.setattr(toy_rule, "Taken", type("Taken", (Lamb,), {}), raising=False)
    with pytest.raises(
        UserError, match=rf"the package toy 1\.0 has a method '{taken}', and that name is taken; remove"
    ):
        found.names()


def test_where_the_room_is_gone_a_refusal_says_so(monkeypatch):
    monkeypatch.setattr("bert_horovod.recipe.methods_found.ROOM", "bert_horovod.no_experiments")
    gone = Methods(Optimizer, "name", (AdamW,))
    assert list(gone) == ["adamw"]
    assert "others are in bert_horovod.no_experiments, which this installation lacks" in gone.hint()
