"""The manifests are what Kubernetes takes, by its own schemas (kubernetes-validate), where unknown fields are refused. A JobSet's schema is not among them:
its Job is looked at."""
import pathlib

import pytest
import yaml

validate = pytest.importorskip("kubernetes_validate")
EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "docs" / "examples"


def documents():
    for name in ("kubernetes", "kubernetes-lease", "jobset", "jobset-lease"):
        for document in yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text()):
            if document["kind"] != "JobSet":
                yield document
                continue
            for job in document["spec"]["replicatedJobs"]:
                yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, **job["template"]}


@pytest.mark.parametrize("document", documents(), ids=lambda d: f"{d['kind']}-{d['metadata']['name']}")
def test_it_is_valid(document):
    validate.validate(document, validate.latest_version(), strict=True)


def test_a_wrong_field_is_found():
    job = next(d for d in documents() if d["kind"] == "Job")
    job["spec"]["template"]["spec"]["containers"][0]["securityContext"]["readOnlyRoot"] = True
    with pytest.raises(validate.ValidationError):
        validate.validate(job, validate.latest_version(), strict=True)
