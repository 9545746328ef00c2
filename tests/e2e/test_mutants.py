"""tests/mutants.py: what is to be sown still stands where it says, and the tests that are to see it exist."""
import subprocess
import sys

from support import BUILD, ROOT


def test_every_fault_has_its_text_and_its_tests():
    p = subprocess.run([sys.executable, ROOT / "tests" / "mutants.py", "--check", BUILD], capture_output=True, text=True, check=False)
    assert (p.returncode, p.stderr) == (0, "")
