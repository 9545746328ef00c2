"""How long a test may take before it fails: the one table, for pytest's tests and for C programs."""
import re

WAITS = 2  # times what one wait may take (CRUN_TEST_WAIT, 60 s; 150 s under sanitizers): 120 s, 300 s
SLOW = 30  # times as long: what is marked so
LONGER = {  # what a test's or program's name says: times as long
    r"emulated|order of ranks|layouts on cuda|cuda plans|worker/device/cuda/|test_gpu_\w+\.py|_gpu\.py": 5,  # emulated GPUs, cuDNN's planning
    r"test_demo\.py|test_chaos\.py|test_pytorch\.py|test_learning\.py": 3,  # a whole training, or minutes of faults, by design
}


def one_wait(patience, worth):
    """patience: 4, more under sanitizers. worth: what a second of this processor is worth (budget.calibrate()): who is slow gets more of them."""
    return 15 * patience * max(1, 1 / worth)


def seconds(name, wait, slow=False, busy=False):
    """busy: others work on this machine."""
    times = max([SLOW if slow else 1, *(t for pattern, t in LONGER.items() if re.search(pattern, name))])
    return WAITS * wait * times * (2 if busy else 1)
