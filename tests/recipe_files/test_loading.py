"""The recipe: every check fires on a bad value and says what is allowed; what goes in comes out."""

import dataclasses
import math
from pathlib import Path

import pytest
import tomli_w

from bert_horovod.errors import UserError
from bert_horovod.recipe import sections
from bert_horovod.recipe.fields import NumbersTable, OneOf, Removed
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe.settings import Execution, Phase
from bert_horovod.recipe_files.earlier import REMOVED
from bert_horovod.recipe_files.loading import (
    SECTIONS,
    differences,
    load_recipe,
    recipe_from_table,
    recipe_of_record,
    recipe_to_table,
    recipe_to_toml,
)
from tests.toys import more_rows, recipe_of

RECIPES = sorted((Path(__file__).resolve().parents[2] / "run" / "recipes").glob("*.toml"))


def settings() -> list[tuple[str, dataclasses.Field]]:
    """Every setting with its section; of a method's own settings the section is as in "exchange/diloco"."""
    found = []
    for section, kind in SECTIONS.items():
        methods = kind.kinds if isinstance(kind, OneOf) else {"": kind[0] if isinstance(kind, list) else kind}
        seen: list[dataclasses.Field] = []
        for method, each in methods.items():
            fresh = [field for field in dataclasses.fields(each) if field.init and field not in seen]
            seen += fresh
            found += [(f"{section}/{method}" if method else section, field) for field in fresh]
    return found


SETTINGS = settings()
MADE_FOR = {"onebit_adam": "adamw", "onebit_lamb": "lamb", **more_rows("rows.MADE_FOR")}
# A phase grows after another one, and has a theta in a ModernBERT; disjoint masks need other pairs.
ALONE = [
    (section, field)
    for section, field in SETTINGS
    if (section, field.name) not in {("phase", "grow"), ("phase", "global_rope_theta"), ("objective", "masks")}
]


def names(settings) -> list[str]:
    return [f"{section}.{field.name}" for section, field in settings]


def table_with(section: str, key: str, value) -> dict:
    section, _, method = section.partition("/")
    if section == "phase":
        return {"phase": [{key: value}]}
    table = {section: {key: value} | ({SECTIONS[section].key: method} if method else {})}
    if method in ("roberta", "modernbert"):
        table |= {"objective": {"pair": "none"}}
    if section == "exchange":
        rule = SECTIONS[section].kinds[method].optimizer
        table |= {"execution": {"consistency_steps": 0}} | ({"optimizer": {"name": rule}} if rule else {})
    return table


def key_of(section: str, key: str) -> str:
    section = section.partition("/")[0]
    return f"phase.0.{key}" if section == "phase" else f"{section}.{key}"


def plain(section: str) -> Recipe:
    """The recipe that table_with changes in one setting."""
    table = table_with(section, "", None)
    return recipe_from_table({name: {k: v for k, v in t.items() if k} for name, t in table.items() if name != "phase"})


LISTS = {"trackers": ["wandb"], "language": ["en"]}


def another(field: dataclasses.Field):
    """A value that the setting may have and that is not its default."""
    default, limits = field.default, field.metadata
    if isinstance(default, bool):
        return not default
    if isinstance(default, tuple):
        return LISTS[field.name]
    if default == "auto" and "minimum" in limits:
        return 1 << 20
    if default == "warmup":
        return 0.5
    if "choices" in limits:
        return next(choice for choice in limits["choices"] if choice != default)
    if field.name == "mixture":
        return NumbersTable(general=0.7, own=0.3)
    if isinstance(default, str):
        return "words"
    if field in dataclasses.fields(Phase) and field.name == "num_hidden_layers":
        return sections.Model().num_hidden_layers  # the last phase has all
    if isinstance(default, int):
        return default * 2 or 1  # doubled, an attention head still divides the width
    return {"warmup": 0.5, "hold": 0.25, "end_learning_rate": 1e-5}.get(field.name, default / 2 or 0.5)


def limits_of(field: dataclasses.Field) -> dict:
    return {name: limit for name, limit in field.metadata.items() if name != "read_if"}


def outside(field: dataclasses.Field) -> list:
    """Values just outside of each of the setting's limits."""
    limits, kind = limits_of(field), {"auto": int, "warmup": float}.get(field.default, type(field.default))
    step = 1 if issubclass(kind, int) else 1e-6
    nonsense = ["nonsense"] if kind is tuple else "nonsense"
    values = [nonsense] if "choices" in limits else []
    values += [kind(limits["minimum"] - step)] if "minimum" in limits else []
    values += [kind(limits["maximum"] + step)] if "maximum" in limits else []
    values += [kind(limits[limit]) for limit in ("above", "below") if limit in limits]
    return values


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_recipe_may_begin_with_a_byte_order_mark(tmp_path):
    assert load_recipe(write(tmp_path, "\ufeff[model]\nnum_hidden_layers = 3\n")).model.num_hidden_layers == 3


def refusal(table: dict) -> str:
    with pytest.raises(UserError) as caught:
        recipe_from_table(table)
    return str(caught.value)


LIMITED = [(section, field) for section, field in SETTINGS if limits_of(field)]


@pytest.mark.parametrize(("section", "field"), LIMITED, ids=names(LIMITED))
def test_a_value_outside_of_its_limits_is_refused_by_key_value_and_what_is_allowed(section, field):
    assert len(outside(field)) == len(limits_of(field))
    for value in outside(field):
        text = refusal(table_with(section, field.name, value))
        assert text.startswith(f"{key_of(section, field.name)} = {value!r}: expected ")
        words = {"minimum": "at least", "above": "more than", "maximum": "at most", "below": "less than"}
        for name, limit in limits_of(field).items():
            assert (", ".join(limit) if name == "choices" else f"{words[name]} {limit}") in text


@pytest.mark.parametrize(("section", "field"), SETTINGS, ids=names(SETTINGS))
def test_a_value_of_another_type_is_refused_by_key_value_and_type(section, field):
    wrong = {
        int: [True, 1.0, "1", [1], {"a": 1}],
        float: [True, "0.5", [0.5]],
        bool: [0, 1, "true"],
        str: [1, True, ["adamw"]],
        tuple: [3, "3", {"a": 1}, ["3", 5]],
    }
    expected = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
    expected |= {tuple: "a list of strings"}
    kind = type(field.default)
    if kind is str and "minimum" in field.metadata:  # a number, or a word for the program to find it
        number, wrong_number = ("a whole number", 1.0) if field.default == "auto" else ("a number", "0.5")
        wrong[str], expected[str] = [True, wrong_number, "1", "AUTO", [1]], f"{number} or {field.default!r}"
    if field.name == "mixture":
        wrong[str], expected[str] = [1, True, ["own"], "Size"], "a table of names and numbers or 'size'"
    for value in wrong[kind]:
        text = refusal(table_with(section, field.name, value))
        assert text.startswith(f"{key_of(section, field.name)} = {value!r}: expected {expected[kind]}")


FLOATS = [(section, field) for section, field in SETTINGS if isinstance(field.default, float)]


@pytest.mark.parametrize(("section", "field"), FLOATS, ids=names(FLOATS))
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400], ids=["nan", "inf", "-inf", "huge"])
def test_numbers_that_are_not_finite_are_refused(section, field, value):
    assert f"{key_of(section, field.name)} = " in refusal(table_with(section, field.name, value))


def test_a_whole_number_is_taken_where_a_number_is_expected():
    decay = recipe_from_table({"optimizer": {"weight_decay": 1}}).optimizer.weight_decay
    assert decay == 1.0
    assert type(decay) is float


@pytest.mark.parametrize(
    ("table", "parts"),
    [
        ({"modle": {}}, ("unknown key modle", "known are: card, data, exchange, execution, finetuning, model")),
        ({"model": {"heads": 2}}, ("unknown key model.heads", "num_attention_heads")),
        ({"phase": [{}, {"step": 2}]}, ("unknown key phase.1.step", "steps, trained_layers, warmup")),
        ({"model": 3}, ("model = 3", "expected a table [model]")),
        ({"phase": []}, ("phase", "one or more [[phase]] tables")),
        ({"phase": {"steps": 3}}, ("phase", "one or more [[phase]] tables")),
        ({"phase": [3]}, ("phase", "one or more [[phase]] tables")),
        ({"model": {"num_attention_heads": 7}}, ("model.num_attention_heads = 7", "model.hidden_size = 768")),
        ({"phase": [{}, {"sequence_length": 513}]}, ("phase.1.sequence_length = 513", "max_position_embeddings = 512")),
        ({"phase": [{"warmup": 0.6, "hold": 0.5}]}, ("phase.0.warmup + hold = 1.1", "at most 1")),
        ({"model": {"type_vocab_size": 1}}, ("model.type_vocab_size = 1", "objective.pair = 'next_se", "at least 2")),
        ({"model": {"hidden_dropout_prob": 1 / 512}}, ("model.hidden_dropout_prob = 0.00195", "0, or more than 1/512")),
        ({"model": {"embedding_size": 769}}, ("model.embedding_size = 769", "at most model.hidden_size = 768")),
        *(
            ({"model": {"shared_layers": groups}}, (f"model.shared_layers = {groups}", "model.num_hidden_layers = 12"))
            for groups in (5, 13)
        ),
        (
            {"optimizer": {"name": "lans", "clipping": "bucket"}},
            ("optimizer.clipping = 'bucket'", "optimizer.name = 'lans'", "expected 'global'"),
        ),
        *(
            (
                {"optimizer": {"clipping": "bucket"}, "exchange": {"method": method}},
                ("optimizer.clipping = 'bucket'", f"exchange.method = '{method}'", "'global', or exchange.method"),
            )
            for method in ("onebit_adam", "largest_chunks", "parameters")
        ),
        *(
            (
                {"optimizer": {"name": optimizer}, "exchange": {"method": method}},
                (f"optimizer.name = '{optimizer}'", f"exchange.method = '{method}'", f"expected {expected}"),
            )
            for optimizer in ("sgd", *more_rows("rows.RULE_RUNS"))
            for method, expected in MADE_FOR.items()
        ),
        ({"data": {"mixture": {"own": -0.1, "web": 1}}}, ("data.mixture = {'own': -0.1, ", "expected at least 0")),
        ({"data": {"mixture": {"own": math.nan}}}, ("data.mixture = {'own': nan}", "expected at least 0")),
        ({"data": {"mixture": {"own": "all"}}}, ("data.mixture = {'own': 'all'}", "a number, found a string")),
        ({"data": {"mixture": {"Own": 1}}}, ("data.mixture = ", "names that match [a-z][a-z0-9_-]*, found 'Own'")),
        ({"data": {"mixture": {}}}, ("data.mixture = {}", "sum to 0")),
        ({"phase": [{"mixture": {"a": 0, "b": 0}}]}, ("phase.0.mixture = {a = 0.0, b = 0.0}", "sum to 0")),
        ({"model": {"attention_probs_dropout_prob": 0.001}}, ("model.attention_probs_dropout_prob = 0.001", "1/512")),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(table, parts):
    text = refusal(table)
    for part in parts:
        assert part in text


def test_all_wrong_keys_are_listed_at_once():
    table = {"modle": {}, "model": {"vocab_size": True, "hiden_size": 3}, "phase": [{}, {"steps": 0}], "data": 3}
    text = refusal(table)
    for part in (
        "unknown key modle; did you mean model?",
        "unknown key model.hiden_size; did you mean hidden_size?",
        "model.vocab_size = True: expected a whole number, found true or false",
        "phase.1.steps = 0: expected at least 1",
        "data = 3: expected a table [data]",
    ):
        assert part in text
    assert len(refusal({"model": {f"unknown{i}": 0 for i in range(1000)}})) < 10_000


def test_a_mixture_is_one_value():
    """Else a resumed run would go on with a store that its mixture has no longer."""

    def mixed(**weights: float) -> Recipe:
        return recipe_from_table({"data": {"mixture": {"web": 2}}, "phase": [{"mixture": weights}]})

    before = mixed(own=0.3, general=1)
    assert before.phase[0].mixture == (("general", 1.0), ("own", 0.3))
    assert recipe_from_table(recipe_to_table(before)) == before == mixed(general=1, own=0.3)
    for weights in (
        {"general": 1, "own": 0.3, "law": 1},
        {"general": 1},
        {"general": 1, "law": 0.3},
        {"general": 1, "own": 0.4},
    ):
        assert [line.partition(":")[0] for line in differences(before, mixed(**weights))] == ["phase.0.mixture"]
    with_flag = recipe_from_table({"phase": [{}]}, ["data.mixture={general = 0.7, own = 0.3}"])
    assert with_flag.data.mixture == (("general", 0.7), ("own", 0.3))
    assert "general = 0.7" in recipe_to_toml(with_flag)


def test_what_just_fits_together_is_accepted():
    recipe_from_table(
        {
            "model": {"hidden_dropout_prob": 0.002, "attention_probs_dropout_prob": 0.0},
            "phase": [{"sequence_length": 512, "warmup": 0.6, "hold": 0.4}],
        }
    )
    recipe_from_table({"model": {"type_vocab_size": 1}, "objective": {"pair": "none"}})
    recipe_from_table({"model": {"embedding_size": 768, "shared_layers": 12}})


METHODS_OF_SECTIONS = [
    (section, kind.key, method, field)
    for section, kind in SECTIONS.items()
    if isinstance(kind, OneOf)
    for method, each in kind.kinds.items()
    for field in dataclasses.fields(each)
    if field.init and (method, field.name) != ("lans", "clipping")  # which fits it in one value
]


@pytest.mark.parametrize(
    ("section", "key", "method", "field"), METHODS_OF_SECTIONS, ids=lambda value: getattr(value, "name", str(value))
)
def test_a_written_recipe_has_its_methods_settings_and_reads_back_as_itself(section, key, method, field):
    recipe = recipe_from_table(table_with(f"{section}/{method}", field.name, another(field)))
    assert recipe_to_table(recipe)[section][field.name] == another(field)
    assert recipe_from_table(recipe_to_table(recipe)) == recipe
    for other, kind in SECTIONS[section].kinds.items():
        if field.name in {each.name for each in dataclasses.fields(kind)}:
            continue
        table = table_with(f"{section}/{other}", field.name, field.default)
        assert recipe_from_table(table) == plain(f"{section}/{other}")  # as in files of earlier runs
        text = refusal(table_with(f"{section}/{other}", field.name, another(field)))
        assert text.startswith(f"{section}.{field.name} = {another(field)!r}: {section}.{key} = {other!r} has no such ")
        assert f"{section}.{key} = " in text.partition("; expected")[2]
        assert method in text.rpartition(" = ")[2].split(" or ")


def test_a_removed_setting_is_passed_over_at_its_old_default_and_else_refused_with_what_replaces_it(monkeypatch):
    monkeypatch.setitem(REMOVED, "data", {"shuffle_buffer": Removed(1000, "rows are drawn without a buffer")})
    assert recipe_from_table({"data": {"seed": 3, "shuffle_buffer": 1000}}).data.seed == 3
    assert refusal({"data": {"shuffle_buffer": 5}}) == (
        "data.shuffle_buffer = 5: there is no such setting any more; rows are drawn without a buffer"
    )
    signs = {"method": "onebit_adam", "encoding": "signs"}
    assert recipe_from_table({"exchange": signs}) == recipe_from_table({"exchange": {"method": "onebit_adam"}})
    assert "shuffle_buffer" not in refusal({"data": {"sed": 5}}).partition("known are")[2]


def test_an_empty_recipe_is_the_defaults_and_phases_are_counted():
    longer = recipe_of(phase=(Phase(), Phase(steps=5)))
    assert recipe_from_table({}) == recipe_of()
    assert differences(recipe_of(), longer) == ["phase: 1 phases -> 2"]
    assert longer.total_steps == Phase().steps + 5


def test_a_recorded_method_that_is_not_known_is_known_by_its_settings():
    table = recipe_to_table(recipe_of())
    assert recipe_of_record(table) == recipe_of()
    table["optimizer"] = {"name": "lost", "beta_1": 0.5, "lengths": [1, 2]}
    recorded = recipe_of_record(table)
    assert recipe_to_table(recorded)["optimizer"].items() >= table["optimizer"].items()
    assert "optimizer.name: 'adamw' -> 'lost'" in differences(recipe_of(), recorded)
    for damaged in ({"a b": 1}, {"beta_1": {}}):
        with pytest.raises(UserError, match="name = 'lost' is unknown, and so are its settings: "):
            recipe_of_record(table | {"optimizer": {"name": "lost"} | damaged})


def test_other_methods_differ_by_their_name_alone():
    signs = recipe_from_table({"exchange": {"method": "onebit_adam", "dense": 0.5}})
    assert differences(recipe_from_table({}), signs) == ["exchange.method: 'gradients' -> 'onebit_adam'"]


@pytest.mark.parametrize("method", ["onebit_adams", 3, ["gradients"], True])
def test_a_method_that_there_is_not_is_refused_with_those_that_there_are(method):
    text = refusal({"exchange": {"method": method, "rank": 4}})
    assert text.startswith(f"exchange.method = {method!r}: expected ")
    assert ("one of gradients, largest_chunks, powersgd, onebit_adam" in text) == isinstance(method, str)


@pytest.mark.parametrize("path", RECIPES, ids=[path.stem for path in RECIPES])
def test_shipped_recipes_load_and_read_back_as_themselves(path, tmp_path):
    recipe = load_recipe(path)
    assert load_recipe(write(tmp_path, recipe_to_toml(recipe))) == recipe


@pytest.mark.parametrize(("section", "field"), ALONE, ids=names(ALONE))
def test_a_written_setting_reads_back_and_differences_name_it_and_its_values_but_in_execution(section, field, tmp_path):
    changed = recipe_from_table(table_with(section, field.name, another(field)))
    assert load_recipe(write(tmp_path, recipe_to_toml(changed))) == changed != plain(section)
    expected = [f"{key_of(section, field.name)}: {field.default!r} -> {another(field)!r}"]
    assert differences(plain(section), changed) == ([] if section in ("execution", "card") else expected)


def test_clipping_by_buckets_makes_micro_batch_and_bucket_bytes_settings_that_a_run_keeps():
    def of(clipping: str, **execution) -> Recipe:
        return recipe_from_table({"optimizer": {"clipping": clipping}, "execution": execution})

    assert differences(of("bucket"), of("bucket", micro_batch=8, bucket_bytes=1000, threads=3)) == [
        "execution.micro_batch: 32 -> 8, by which optimizer.clipping = 'bucket' clips",
        "execution.bucket_bytes: 'auto' -> 1000, by which optimizer.clipping = 'bucket' clips",
    ]
    assert differences(of("global"), of("global", micro_batch=8, bucket_bytes=1000)) == []


@pytest.mark.parametrize(
    ("earlier", "trackers"),
    [
        ({"tensorboard": True, "trackers": ["wandb"]}, ("tensorboard", "wandb")),
        ({"tensorboard": False, "trackers": []}, ()),
        ({"tensorboard": False, "trackers": ["tensorboard", "mlflow"]}, ("mlflow",)),
        ({"tensorboard": True}, ("tensorboard",)),
    ],
)
def test_the_former_setting_of_tensorboard_is_one_of_the_trackers(earlier, trackers):
    assert recipe_from_table({"execution": earlier}).execution == Execution(trackers=trackers)


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("execution.micro_batch=8", "execution", "micro_batch", 8),
        (" execution.micro_batch = 8 ", "execution", "micro_batch", 8),
        ("optimizer.weight_decay=1e-2", "optimizer", "weight_decay", 0.01),
        ("objective.pair=none", "objective", "pair", "none"),
        ("optimizer.name=lamb", "optimizer", "name", "lamb"),
        ('execution.trackers=["wandb"]', "execution", "trackers", ("wandb",)),
        ("execution.trackers=[]", "execution", "trackers", ()),
        ('optimizer.name="lamb"', "optimizer", "name", "lamb"),
    ],
)
def test_an_overriding_value_is_read_as_toml_else_as_a_string(tmp_path, override, section, key, value):
    recipe = load_recipe(write(tmp_path, "[optimizer]\nbeta_1 = 0.8\n"), [override])  # [execution] is made where absent
    assert getattr(getattr(recipe, section), key) == value
    assert recipe.optimizer.beta_1 == 0.8


def test_overrides_reach_a_phase_by_its_number_and_the_last_one_wins(tmp_path):
    recipe = load_recipe(
        write(tmp_path, "[[phase]]\nsteps = 1\n[[phase]]\nsteps = 2\n"),
        ["phase.1.steps=7", "phase.1.steps=9", "phase.0.warmup=0.5"],
    )
    assert [(phase.steps, phase.warmup) for phase in recipe.phase] == [(1, 0.5), (9, 0.01)]


@pytest.mark.parametrize(
    ("text", "override", "expected"),
    [
        ("", "execution.micro_batch", "expected section.key=value"),
        ("", "micro_batch=8", "expected section.key=value"),
        ("", "execution.=8", "expected section.key=value"),
        ("", "execution.micro_batch.x=8", "expected section.key=value"),
        ("model = 3", "model.vocab_size=8", "expected section.key=value"),
        ("", "phase.0.steps=8", r"the recipe has 0 \[\[phase\]\]"),
        ("[[phase]]", "phase.1.steps=8", r"phase\.N\.key=value .*the recipe has 1 \[\[phase\]\]"),
        ("[[phase]]", "phase.-1.steps=8", r"phase\.N\.key=value"),
        ("[[phase]]", "phase.².steps=8", r"phase\.N\.key=value"),
        ("phase = 3", "phase.0.steps=8", r"expected one or more \[\[phase\]\] tables"),
        ("phase = [3]", "phase.0.steps=8", r"expected one or more \[\[phase\]\] tables"),
    ],
)
def test_an_override_that_cannot_be_applied_is_refused_in_full(tmp_path, text, override, expected):
    with pytest.raises(UserError, match=expected) as caught:
        load_recipe(write(tmp_path, text), [override])
    assert f"--set {override}" in str(caught.value)


def test_a_message_does_not_repeat_a_value_of_any_length(tmp_path: Path):
    path = tmp_path / "recipe.toml"
    path.write_text(tomli_w.dumps({"optimizer": {"name": "x" * 100_000}}), encoding="utf-8")
    with pytest.raises(UserError, match=r"optimizer\.name = 'xxx.*expected one of adamw"):
        load_recipe(path)


@pytest.mark.parametrize(
    "text",
    ["[" * 20_000, "a = " + "{a = " * 20_000, "[a" + ".a" * 9000 + "]", "a = " + "9" * 5000, "\0", "phase = [[]]"],
    ids=["brackets", "tables", "dots", "digits", "nul", "no tables"],
)
def test_a_hostile_file_is_refused(tmp_path, text):
    path = tmp_path / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"the recipe .*recipe\.toml"):
        load_recipe(path)
