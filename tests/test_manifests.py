"""The manifests of examples/kubernetes are valid, and their commands exist.

Kubernetes' own kinds are checked against its schemas. JobSet is a custom resource: the template of
each of its jobs is checked as a Job, the rest here.
"""

import copy
import re

import pytest
import yaml

from seq2seq.runtime.errors import CONFIGURATION, DIVERGED
from tests.support.documents import ROOT, TEXTS, Command
from tests.test_docs import check_command

kubernetes_validate = pytest.importorskip("kubernetes_validate")

FILES = sorted((ROOT / "examples" / "kubernetes").glob("*.yaml"))
MANIFESTS = {path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in FILES}
JOB, JOBSET = MANIFESTS["train-job.yaml"], MANIFESTS["train-jobset.yaml"]
NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
ACTIONS = {"FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"}


def jobs(manifest):
    """The Jobs that a manifest creates."""
    if manifest["kind"] == "Job":
        return [manifest]
    head = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}
    return [head | replicated["template"] for replicated in manifest["spec"]["replicatedJobs"]]


def check(manifest):
    """Raise an exception unless a manifest is valid."""
    for job in jobs(manifest):
        kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)
        pods = job["spec"]["template"]["spec"]
        assert pods["restartPolicy"] == "Never"  # required by podFailurePolicy
        names = {container["name"] for container in pods["containers"]}
        for rule in job["spec"]["podFailurePolicy"]["rules"]:
            assert rule.get("onExitCodes", {}).get("containerName", "train") in names
    assert NAME.fullmatch(manifest["metadata"]["name"])
    if manifest["kind"] == "JobSet":
        check_job_set(manifest)


def check_job_set(manifest):
    """What jobset.x-k8s.io/v1alpha2 requires of the fields that are used."""
    assert manifest.keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert manifest["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    spec = manifest["spec"]
    assert spec.keys() <= {"failurePolicy", "replicatedJobs"}
    policy = spec["failurePolicy"]
    assert policy.keys() <= {"maxRestarts", "rules"} and isinstance(policy["maxRestarts"], int)
    for rule in policy["rules"]:
        assert rule.keys() == {"name", "action", "onJobFailureReasons"}
        assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", rule["name"])
        assert rule["action"] in ACTIONS and rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    for job in spec["replicatedJobs"]:
        assert job.keys() == {"name", "replicas", "template"} and NAME.fullmatch(job["name"])
        assert isinstance(job["replicas"], int) and job["template"].keys() == {"spec"}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_is_valid_and_described(name):
    check(MANIFESTS[name])
    assert f"examples/kubernetes/{name}" in TEXTS["docs/SCALING.md"]
    assert f"kubectl apply -f examples/kubernetes/{name}\n" in FILES[0].with_name(name).read_text()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("completions",), "4"),
        (("backoffLimits",), 1),
        (("template", "spec", "terminationGracePeriodSeconds"), "5m"),
        (("template", "spec", "containers", 0, "comand"), []),
        (("template", "spec", "containers", 0, "env", 0, "value"), 1),
        (("template", "spec", "restartPolicy"), "OnFailure"),
        (("podFailurePolicy", "rules", 0, "action"), None),
        (("podFailurePolicy", "rules", -1, "onExitCodes", "containerName"), "other"),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", MANIFESTS)
def test_an_invalid_manifest_is_noticed(name, path, value):
    changed = copy.deepcopy(MANIFESTS[name])
    place = jobs(changed)[0]["spec"]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises((kubernetes_validate.ValidationError, AssertionError)):
        check(changed)


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_commands_of_a_manifest_exist_and_keep_the_run_in_a_bucket(name):
    for job in jobs(MANIFESTS[name]):
        pods = job["spec"]["template"]["spec"]
        (container,) = pods["containers"]
        words = container["command"]
        check_command(Command(words, {}, None, None, None), set())
        assert words[:2] == ["python", "train.py"]  # no shell, which does not pass signals on
        assert any(word.startswith("--workdir=gs://") for word in words)
        assert ("--distributed" in words) == (job["spec"].get("completions", 1) > 1)
        (cache,) = [v["value"] for v in container["env"] if v["name"] == "XDG_CACHE_HOME"]
        (mount,) = container["volumeMounts"]
        assert mount["mountPath"] == cache and mount["name"] == pods["volumes"][0]["name"]


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_preempted_training_is_started_again_and_a_useless_one_is_not(name):
    for job in jobs(MANIFESTS[name]):
        *others, failing = job["spec"]["podFailurePolicy"]["rules"]
        assert failing["action"] == "FailJob"
        codes = {"containerName": "train", "operator": "In", "values": [CONFIGURATION, DIVERGED]}
        assert failing["onExitCodes"] == codes
        assert job["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= 120
        if job is JOB:
            assert others == [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
            ]
            pauses = [min(10 * 2**attempt, 360) for attempt in range(job["spec"]["backoffLimit"])]
            assert sum(pauses) > 2 * 600  # the lock of a killed pod holds for 600 s
        else:
            assert not others and job["spec"]["backoffLimit"] == 0


def test_the_job_set_has_one_process_for_each_host_of_its_slice():
    (job,) = jobs(JOBSET)
    spec = job["spec"]
    pods = spec["template"]["spec"]
    rows, columns = pods["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")
    chips = pods["containers"][0]["resources"]["limits"]["google.com/tpu"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == int(rows) * int(columns) // chips
    assert JOBSET["spec"]["failurePolicy"]["maxRestarts"] >= 50
    assert "hostNetwork" not in pods  # its host name is that of the node: a lock names the host
