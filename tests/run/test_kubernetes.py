"""The manifests of run/kubernetes against the resource definitions of the MPI operator and Trainer v2: no cluster runs.

The operator's definition has the schema of pods, Trainer's those of jobs; pods have one of claims. What pods do is
tried in tests/cluster/launching/test_pods.py.
"""

import gzip
import re
from typing import Any

import pytest

from bert_horovod.__main__ import parse
from bert_horovod.commands.shared.parser import refuse_unread
from tests.conftest import SHARED_DATA
from tests.horovod_runs import PROJECT

yaml = pytest.importorskip("yaml")
jsonschema = pytest.importorskip("jsonschema")

MANIFESTS = PROJECT / "run" / "kubernetes"
DEFINITIONS = SHARED_DATA.parent / "facts" / "kubernetes"
needs_definitions = pytest.mark.skipif(
    not DEFINITIONS.is_dir(), reason="needs ../shared/facts/kubernetes (resource definitions), which is not here"
)
KINDS = {
    "MPIJob": "mpijobs",
    "TrainJob": "trainjobs",
    "ClusterTrainingRuntime": "clustertrainingruntimes",
    "Job": "clustertrainingruntimes",
    "PersistentVolumeClaim": "mpijobs",
}
# Where the schema of a kind that Kubernetes itself has stands in another's.
_POD = "spec mpiReplicaSpecs * template spec"
INSIDE = {
    "Job": "spec template spec replicatedJobs * template spec",
    "PersistentVolumeClaim": f"{_POD} volumes * ephemeral volumeClaimTemplate spec",
}


def strict(schema: Any) -> Any:
    """A schema that refuses a field it does not name, as kubectl does, without Kubernetes' own keywords."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {name: strict(part) for name, part in schema.items() if not name.startswith("x-kubernetes")}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        plain.setdefault("additionalProperties", False)
    return plain


def part_of(schema: dict[str, Any], path: str) -> dict[str, Any]:
    for name in path.split():
        if name != "*":
            schema = schema["properties"][name]
        else:
            schema = schema["items"] if "items" in schema else schema["additionalProperties"]
    return schema


@pytest.fixture(scope="module")
def schemas() -> dict[str, dict[str, Any]]:
    """The schema of each kind; for those in INSIDE of their `spec` alone."""
    by_file = {}
    for name in set(KINDS.values()):
        definition = yaml.load(gzip.decompress((DEFINITIONS / f"{name}.crd.yaml.gz").read_bytes()), yaml.CSafeLoader)
        (version,) = definition["spec"]["versions"]
        by_file[name] = version["schema"]["openAPIV3Schema"]
    return {kind: strict(part_of(by_file[KINDS[kind]], INSIDE.get(kind, ""))) for kind in KINDS}


def text(name: str, variant: str = "as it stands") -> str:
    """A manifest; with what its comments offer in place, or as they say for CPUs."""
    manifest = (MANIFESTS / f"{name}.yaml").read_text(encoding="utf-8")
    if variant == "what comments offer":
        return re.sub(r"^( *)# (?=[a-z]\w+: \S)", r"\1", manifest, flags=re.MULTILINE)
    if variant == "CPUs":
        manifest = re.sub(r"(slotsPerWorker|numProcPerNode): 8", r"\1: 1", manifest)
        return re.sub(r"^.*nvidia\.com/gpu: .*\n", "", manifest, flags=re.MULTILINE)
    return manifest


def objections(manifest: dict[str, Any], schemas: dict[str, dict[str, Any]]) -> list[str]:
    kind = manifest["kind"]
    validator = jsonschema.Draft202012Validator(schemas[kind])
    found = validator.iter_errors(manifest["spec"] if kind in INSIDE else manifest)
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in found]


@pytest.mark.full
@needs_definitions
@pytest.mark.parametrize(
    ("name", "variant"),
    [
        *((name, "as it stands") for name in ("claim", "prepare", "mpijob", "runtime", "trainjob")),
        *((name, "what comments offer") for name in ("claim", "mpijob")),
        *((name, "CPUs") for name in ("mpijob", "runtime")),
    ],
)
def test_a_manifest_fits_the_definition_of_its_kind(schemas, name, variant):
    changed = text(name, variant)
    assert (changed == text(name)) == (variant == "as it stands")
    assert objections(yaml.safe_load(changed), schemas) == []


@pytest.mark.full
@needs_definitions
@pytest.mark.parametrize(
    ("name", "right", "wrong", "objection"),
    [
        ("mpijob", "readinessProbe", "readyProbe", "'readyProbe' was unexpected"),
        ("prepare", "completionMode", "completion", "'completion' was unexpected"),
    ],
)
def test_a_mistake_would_be_found(schemas, name, right, wrong, objection):
    (found,) = objections(yaml.safe_load(text(name).replace(right, wrong)), schemas)
    assert objection in found


def commands(manifest: Any) -> list[list[str]]:
    """The arguments of all containers of the image."""
    if isinstance(manifest, dict):
        own = [manifest["args"]] if "args" in manifest else []
        return own + [words for part in manifest.values() for words in commands(part)]
    return [words for part in manifest for words in commands(part)] if isinstance(manifest, list) else []


@pytest.mark.parametrize("name", ["prepare", "mpijob", "runtime", "trainjob"])
def test_the_commands_are_those_of_the_program(name):
    found = commands(yaml.safe_load(text(name)))
    assert found
    for words in found:
        if words == ["sshd"]:
            continue
        arguments = parse(words)
        refuse_unread(arguments)
        if words[1] == "launch":
            inner = parse(["bert-horovod", *words[words.index("--") + 1 :]])
            refuse_unread(inner)
        else:
            from bert_horovod.corpus.preparing.planning import find_part

            job = yaml.safe_load(text(name))["spec"]
            part = find_part(arguments.part, {"JOB_COMPLETION_INDEX": "3"})
            assert (part.number, part.of) == (4, job["completions"])


def test_pods_have_time_to_save_and_keys_where_the_image_takes_them_from():
    mpi_job = yaml.safe_load(text("mpijob"))["spec"]
    runtime = yaml.safe_load(text("runtime"))["spec"]
    assert mpi_job["sshAuthMountPath"] == runtime["mlPolicy"]["mpi"]["sshAuthMountPath"] == "/keys"
    pods = [kind["template"]["spec"] for kind in mpi_job["mpiReplicaSpecs"].values()]
    pods += [job["template"]["spec"]["template"]["spec"] for job in runtime["template"]["spec"]["replicatedJobs"]]
    assert [pod["terminationGracePeriodSeconds"] for pod in pods] == [300] * 4
    assert {pod["securityContext"]["runAsUser"] for pod in pods} == {1000}
    container_script = (PROJECT / "run" / "container.sh").read_text(encoding="utf-8")
    assert "keys=${KEYS:-/keys}" in container_script
    assert "port=${SSH_PORT:-2222}" in container_script
