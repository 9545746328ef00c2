"""A script as PyTorch's manual shows it: main() under @record. Rank 1 fails."""
import os
import time

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    dist.init_process_group("gloo")
    dist.barrier()
    mark = os.path.join(os.environ["TMPDIR"], "past-the-barrier")
    if dist.get_rank() == 1:
        while not os.path.exists(mark):
            time.sleep(0.01)
        raise ValueError(f"no luck on local rank {os.environ['LOCAL_RANK']}")
    with open(mark, "w", encoding="ascii"):
        pass
    time.sleep(600)  # busy with something else than the group, which rank 1 is about to break


if __name__ == "__main__":
    main()
