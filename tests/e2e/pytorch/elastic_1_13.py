"""torch 1.13's elastic launcher by its API: its torchrun fails under Python 3.11."""
import sys

from torch.distributed.elastic.multiprocessing import Std
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=int(sys.argv[1]), run_id="elastic", rdzv_backend="c10d",
                      rdzv_endpoint="localhost:0", max_restarts=int(sys.argv[2]), monitor_interval=0.1, redirects=Std.NONE, tee=Std.NONE)
elastic_launch(config, sys.argv[3])(*sys.argv[4:])
