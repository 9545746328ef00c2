"""The manifests are what Kubernetes takes, by its own schemas (kubernetes-validate), where unknown fields are refused. Those of a JobSet and of a TrainingRuntime
are not among them: their Jobs are looked at."""
import pathlib

import pytest
import yaml

validate = pytest.importorskip("kubernetes_validate")
EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "docs" / "examples"


def documents():
    for path in sorted(EXAMPLES.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if document["kind"] not in ("JobSet", "TrainingRuntime"):
                yield document
                continue
            jobs = document["spec"] if document["kind"] == "JobSet" else document["spec"]["template"]["spec"]
            for job in jobs["replicatedJobs"]:
                yield {"apiVersion": "batch/v1", "kind": "Job", **job["template"], "metadata": {"name": job["name"], **job["template"].get("metadata", {})}}


@pytest.mark.parametrize("document", list(documents()), ids=lambda d: f"{d['kind']}-{d['metadata']['name']}")
def test_it_is_valid(document):
    validate.validate(document, validate.latest_version(), strict=True)


def test_a_wrong_field_is_found():
    job = next(d for d in documents() if d["kind"] == "Job")
    job["spec"]["template"]["spec"]["containers"][0]["securityContext"]["readOnlyRoot"] = True
    with pytest.raises(validate.ValidationError):
        validate.validate(job, validate.latest_version(), strict=True)
