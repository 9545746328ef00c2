"""What a GPU machine's Python has of CUDA is found where the toolkit lacks it: cuDNN, NCCL and cuBLASLt, in either layout of their wheels."""
import importlib.util

import pytest

from support import ROOT

HEADERS = {"cudnn": ("cudnn_graph.h", "libcudnn.so.9"), "nccl": ("nccl.h", "libnccl.so.2"), "cublas": ("cublasLt.h", "libcublasLt.so.13")}


@pytest.fixture
def deps(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("deps", ROOT / "tests/gpu/deps.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.sysconfig, "get_path", lambda name: str(tmp_path / "site"))
    monkeypatch.setattr(module.site, "getsitepackages", lambda: [])
    return module


def wheel(site, folder, *parts):
    for part in parts:
        header, library = HEADERS[part]
        for name, file in ("include", header), ("lib", library):
            (site / "nvidia" / folder / name).mkdir(parents=True, exist_ok=True)
            (site / "nvidia" / folder / name / file).write_text("")


@pytest.mark.parametrize("cublas", ["cublas", "cu13"])
def test_what_the_toolkit_lacks_is_taken_from_wheels(deps, monkeypatch, tmp_path, cublas):
    for folder, part in (("cudnn", "cudnn"), ("nccl", "nccl"), (cublas, "cublas")):
        wheel(tmp_path / "site", folder, part)
    monkeypatch.setattr(deps, "in_toolkit", lambda header: False)
    found = deps.wheels(tmp_path / "to")
    assert [lib.parent.name for lib in found] == ["cudnn", "nccl", cublas]
    assert sorted(f.name for f in (tmp_path / "to/lib").iterdir()) == ["libcublasLt.so", "libcudnn.so", "libnccl.so"]
    assert sorted(f.name for f in (tmp_path / "to/include").iterdir()) == ["cublasLt.h", "cudnn_graph.h", "nccl.h"]


def test_what_the_toolkit_has_is_its_own(deps, monkeypatch, tmp_path):
    for folder, part in (("cudnn", "cudnn"), ("nccl", "nccl"), ("cublas", "cublas")):
        wheel(tmp_path / "site", folder, part)
    monkeypatch.setattr(deps, "in_toolkit", lambda header: header == "cublasLt.h")
    assert [lib.parent.name for lib in deps.wheels(tmp_path / "to")] == ["cudnn", "nccl"]
