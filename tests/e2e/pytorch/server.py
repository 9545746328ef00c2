"""PyTorch's own TCPStore server on a port, until its input ends."""
import sys
from datetime import timedelta

from torch.distributed import TCPStore

store = TCPStore("127.0.0.1", int(sys.argv[1]), None, True, timedelta(seconds=60), False)
print("ready", flush=True)
sys.stdin.read()
