"""trainer comm-test and comm-bench, between ranks that crun starts."""
import re

import pytest

from support import CRUN, TRAINER, run

LINE = re.compile(r"(\w+) +(\d+) +(\d+) +(\w+) +(\w+) +(-?\d+) +([\d.]+) +([\d.]+) +([\d.]+) +(\d+)$", re.M)


def collectives(world, command, *args, timeout=120):
    return run(CRUN, "--standalone", "--nproc_per_node", world, "trainer", command, *args, timeout=timeout)


REDOPS = ("sum", "max", "min", "prod")
ROWS = {(call, op) for call in ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_v") for op in REDOPS} | {
    (call, "none") for call in ("all_gather", "all_gather_v", "gather", "gather_v", "scatter", "scatter_v", "broadcast", "sendrecv")}


@pytest.mark.parametrize("world", [2, 3])
def test_every_call_type_and_operation_is_right_over_gloo(world):
    p = collectives(world, "comm-test", "--comm", "gloo", "--max-bytes", 65536)
    assert p.returncode == 0, p.stdout + p.stderr
    lines = LINE.findall(p.stdout)
    assert {(call, kind, op) for call, _, _, kind, op, *_ in lines} == {
        (call, kind, op) for kind in ("float", "double", "half", "bfloat16", "int64") for call, op in ROWS}
    assert all(line[-1] == "0" for line in lines)
    assert "# Out of bounds values : 0 OK" in p.stdout


@pytest.mark.parametrize("how", ["block", "stride"])
def test_groups_call_side_by_side(how):
    p = collectives(4, "comm-test", "--comm", "gloo", "--max-bytes", 4096, "--type", "float", "--group-size", 2, "--group-by", how, "--root", 0)
    assert p.returncode == 0, p.stdout + p.stderr
    assert "# gloo, 4 ranks in groups of 2, buffers in host memory" in p.stdout
    lines = LINE.findall(p.stdout)
    assert {(line[0], line[4]) for line in lines} == ROWS
    assert {line[5] for line in lines if line[0] == "broadcast"} == {"0"}
    assert "# Out of bounds values : 0 OK" in p.stdout


def test_the_parts_and_the_redop_are_those_asked_for():
    p = run(TRAINER, "comm-test", "--call", "reduce_scatter", "--parts", "uneven", "--redop", "prod", "--type", "half", "--max-bytes", 64)
    assert p.returncode == 0, p.stdout + p.stderr
    assert {(line[0], line[3], line[4]) for line in LINE.findall(p.stdout)} == {("reduce_scatter_v", "half", "prod")}


def test_a_bench_prints_the_bandwidths_that_its_times_mean():
    p = collectives(2, "comm-bench", "--comm", "gloo", "--call", "all_gather", "-b", 1024, "-e", 1 << 20, "-f", 32, "-n", 3)
    assert p.returncode == 0, p.stdout + p.stderr
    lines = LINE.findall(p.stdout)
    assert [int(line[1]) for line in lines] == [1024, 32768, 1 << 20]
    for line in lines:
        size, count, time, algorithm, bus = int(line[1]), int(line[2]), *map(float, line[6:9])
        assert size == 4 * count
        assert abs(algorithm - size / time / 1e3) <= 0.001 + 0.01 * algorithm
        assert abs(bus - algorithm / 2) <= 0.002  # of two ranks each sends half


def test_a_rank_alone_and_what_cannot_be():
    p = run(TRAINER, "comm-test", "--max-bytes", 4096)
    assert p.returncode == 0 and "local, 1 ranks" in p.stdout, p.stdout + p.stderr
    p = run(TRAINER, "comm-test", "--comm", "nccl")
    assert p.returncode != 0 and "--device cuda" in p.stderr
    p = run(TRAINER, "comm-bench", "-b", 100, "-e", 10)
    assert p.returncode == 2 and "--min-bytes 100 is above --max-bytes 10" in p.stderr
    p = run(TRAINER, "comm-bench", "--root", 1)
    assert p.returncode == 2 and "--root 1: expected a rank below 1" in p.stderr
    p = collectives(2, "comm-bench", "--group-size", 3)
    assert p.returncode == 2 and "--group-size 3: expected a divisor of 2, the number of ranks" in p.stderr
