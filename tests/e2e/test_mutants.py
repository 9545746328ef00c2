"""tests/mutants.py: what is to be sown still stands where it says, and the tests that are to see it exist."""
import subprocess
import sys

from support import BUILD, ROOT


def test_every_fault_has_its_text_and_its_tests():
    p = subprocess.run([sys.executable, ROOT / "tests" / "mutants.py", "--check", BUILD], capture_output=True, text=True, check=False)
    assert (p.returncode, p.stderr) == (0, "")


def test_a_python_without_pytest_is_said_before_a_build(tmp_path):
    name = "a_hung_worker_counts_from_its_kill"  # a test of pytest's is to see it
    p = subprocess.run([sys.executable, "-I", "-S", ROOT / "tests" / "mutants.py", "--only", name, tmp_path / "out"], capture_output=True, text=True, check=False, timeout=60)
    assert p.returncode == 1 and f"{sys.executable} has no pytest, which launcher/test_hang.py::" in p.stderr and p.stderr.count("\n") == 1, p.stderr
    assert not list((tmp_path / "out").glob("tree"))
