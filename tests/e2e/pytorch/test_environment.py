"""Every difference between a worker's environment under crun and under torchrun stands in one table of docs/reference/environment.md."""

import pathlib

import environment
from support import CRUN, ROOT


def test_the_table_of_differences_is_complete(tmp_path):
    crun = environment.ask([CRUN], tmp_path)
    table = environment.table(environment.recorded(), crun)
    assert table in pathlib.Path(ROOT, "docs/reference/environment.md").read_text(), table


def test_nothing_that_torchrun_sets_is_missing(tmp_path):
    crun, torchrun = environment.ask([CRUN], tmp_path), environment.recorded()
    assert torchrun.keys() <= crun.keys()
    assert all(name.startswith("CRUN_") for name in crun.keys() - torchrun.keys() - {"NCCL_RAS_ADDR"})
