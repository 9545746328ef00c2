"""Output under stress: nothing torn, nothing lost that could be written, no deadlock, the right exit status. Figures are printed (-s)."""

import collections
import os
import re
import resource
import subprocess
import time

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
WRITER = ("python3", os.path.join(HERE, "log_worker.py"))
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


@pytest.fixture
def small_disk(crun):
    """A tmpfs of 1 MiB."""
    path = crun.tmp / "disk"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", path], stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("no right to mount a tmpfs")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


class Usage:
    """CPU seconds and peak memory of a process, as long as it could be asked."""

    def __init__(self, pid):
        self.pid, self.cpu, self.peak_kb = pid, 0.0, 0
        self.first = time.monotonic()
        self.look()
        self.cpu_before = self.cpu

    def look(self):
        try:
            stat = open(f"/proc/{self.pid}/stat").read().rsplit(")", 1)[1].split()
            self.peak_kb = int(re.search(r"VmHWM:\s+(\d+)", open(f"/proc/{self.pid}/status").read())[1])
        except (OSError, TypeError):
            return
        self.cpu = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
        self.last = time.monotonic()

    def share(self):
        return (self.cpu - self.cpu_before) / (self.last - self.first)


@pytest.mark.slow
def test_64_ranks_of_a_megabyte_a_second(crun):
    ranks, seconds, width = 64, 30, 1000
    logs = crun.tmp / "logs"
    p = crun.start("--nproc-per-node", ranks, "--log-dir", logs, "--run-id", "j", "--log-rotate-size", "2M", "--log-rotate-keep", 1,
                   *WRITER, "steady", 1000000, seconds, width, stderr=open(crun.tmp / "err", "wb"), extra_env=ONE_THREAD)
    seen = collections.Counter()
    usage = None
    for line in p.stdout:
        # "[defaultR]: RRR NNNNNNNN xxx...": R as the prefix, N in order, nothing missing
        rank = int(line[8:line.index(b"]")])
        text = line[line.index(b" ") + 1:]
        assert len(text) == width and text.startswith(b"%03d %08d " % (rank, seen[rank])), line[:80]
        assert text[13:] == bytes([97 + rank % 26]) * (width - 14) + b"\n"
        seen[rank] += 1
        if seen[rank] % 1000 == 1:
            if usage is None:
                usage = Usage(crun.output_of(p.pid))
            usage.look()
    assert p.wait(timeout=60) == 0
    said = dict(re.findall(r"\[default(\d+)\]: wrote (\d+)", (crun.tmp / "err").read_text()))
    assert {str(r): str(n) for r, n in seen.items()} == said and len(said) == ranks
    for rank in range(ranks):
        check_files(logs / "j" / "round-1", rank, seen[rank], width)
    total = sum(seen.values()) * width
    print(f"\n{ranks} ranks, {total / 1e6:.0f} MB in {usage.last - usage.first:.1f} s: output process {usage.share():.2f} cores,"
          f" peak {usage.peak_kb / 1024:.1f} MB")


def check_files(folder, rank, count, width):
    """The youngest rotated file and the current one: whole lines up to the last, none missing."""
    old = sorted(folder.glob(f"rank-{rank}.out.*"), key=lambda f: int(f.suffix[1:]))
    assert len(old) == 1
    text = old[0].read_bytes() + (folder / f"rank-{rank}.out").read_bytes()
    numbers = [int(line[4:12]) for line in text.splitlines()]
    assert len(text) == len(numbers) * width and numbers == list(range(count - len(numbers), count))


def test_lines_of_a_mebibyte_from_eight_ranks(crun):
    size, count = 1 << 20, 3
    rc, out, _ = crun.run("--nproc-per-node", 8, "--log-dir", crun.tmp / "l", "--run-id", "j", *WRITER, "long_lines", size, count)
    assert rc == 0
    lines = out.splitlines()
    want = [f"[default{r}]: {r:03d} {i:08d} " + "y" * size for r in range(8) for i in range(count)]
    assert sorted(lines) == want
    for r in range(8):
        assert (crun.tmp / "l" / "j" / "round-1" / f"rank-{r}.out").read_text().splitlines() == [w[12:] for w in want[r * count:][:count]]


def test_bytes_that_are_no_text_arrive_as_they_are(crun):
    every = bytes(b for b in range(256) if b != 10) + b"\xff\xfe\xc0\x80\xed\xa0\x80\xf4\x90\n"
    p = crun.start("--log-dir", crun.tmp / "l", "--run-id", "j", "--log-prefix", *WRITER, "raw", every.hex(), 50)
    out, _ = p.communicate(timeout=60)
    assert p.returncode == 0 and out == (b"[default0]: " + every) * 50
    assert (crun.tmp / "l" / "j" / "round-1" / "rank-0.out").read_bytes() == every * 50


@pytest.mark.parametrize("code", [0, 7])
def test_a_reader_that_goes_away_costs_the_console_only(crun, code):
    read, write = os.pipe()
    p = crun.start("--nproc-per-node", 4, "--log-dir", crun.tmp / "l", "--run-id", "j", "sh", "-c",
                   f"seq 200000; touch {crun.tmp}/end-$RANK; while [ ! -e {crun.tmp}/end-3 ]; do sleep 0.01; done; exit $((RANK == 3 ? {code} : 0))",
                   stdout=write, extra_env=ONE_THREAD)
    os.close(write)
    os.read(read, 1000)
    os.close(read)
    p.communicate(timeout=90)
    assert p.returncode == code
    whole = "".join(f"{i}\n" for i in range(1, 200001))
    assert (crun.tmp / "l" / "j" / "round-1" / "rank-3.out").read_text() == whole


def test_a_console_that_reads_nothing_holds_up_only_whom_it_is_to_show(crun):
    p = crun.start("--nproc-per-node", 2, "-r", "1:3", "--log-dir", crun.tmp / "l", "--run-id", "j", "sh", "-c",
                   f"if [ $RANK = 0 ]; then touch {crun.tmp}/up; seq 2000000; else while [ ! -e {crun.tmp}/go ]; do sleep 0.01; done; seq 200000; touch {crun.tmp}/free; fi")
    crun.wait_file("up")
    output = crun.output_of(p.pid)
    before, end = None, time.monotonic() + 60
    while before != (now := open(f"/proc/{output}/stat").read().split()[13:15]):  # until rank 0 is held up
        assert time.monotonic() < end
        before = now
        time.sleep(0.4)
    (crun.tmp / "go").touch()
    crun.wait_file("free")
    out, _ = p.communicate(timeout=60)
    assert p.returncode == 0 and out.count(b"\n") == 2000000


def whole_lines(path, width):
    """The numbers in a file of log_worker's lines; crun's own lines apart."""
    numbers, notes = [], []
    for line in path.read_text().split("\n")[:-1]:
        if line.startswith("crun: "):
            notes.append(line)
        else:
            assert re.fullmatch(rf"\d{{3}} \d{{8}} y{{{width - 14}}}", line), line[:80]
            numbers.append(int(line[4:12]))
    assert path.read_text().endswith("\n")
    return numbers, notes


@pytest.mark.parametrize("code", [0, 5])
def test_a_full_disk_costs_files_but_neither_job_nor_console(crun, small_disk, code):
    ranks, count, width = 4, 5000, 200
    p = crun.start("--nproc-per-node", ranks, "--log-dir", small_disk, "--run-id", "j", "sh", "-c",
                   f"{' '.join(WRITER)} long_lines {width - 14} {count}; touch {crun.tmp}/end-$RANK;"
                   f"for r in 0 1 2 3; do while [ ! -e {crun.tmp}/end-$r ]; do sleep 0.01; done; done; exit {code}", extra_env=ONE_THREAD)
    out, err = p.communicate(timeout=90)
    assert p.returncode == code
    told = re.findall(r"crun: the log file (\S+) is incomplete from here on: No space left on device\n", err.decode())
    assert len(told) == len(set(told)) and told and all(t.startswith(f"{small_disk}/j/round-1/rank-") for t in told)
    lost = int(re.search(r"crun: (\d+) bytes of the workers' output are missing in the log files", err.decode())[1])
    kept = 0
    for rank in range(ranks):
        path = small_disk / "j" / "round-1" / f"rank-{rank}.out"
        numbers, _ = whole_lines(path, width) if path.stat().st_size else ([], [])
        assert numbers == sorted(set(numbers))
        kept += len(numbers) * width
    assert out.count(b"\n") == ranks * count and lost + kept == ranks * count * width
    print(f"\nfull tmpfs of 1 MiB, exit {code}: {kept} bytes kept in whole lines, {lost} told as missing")


@pytest.mark.long
def test_a_disk_that_has_room_again_is_used_again(crun, small_disk):
    p = crun.start("--log-dir", small_disk, "--run-id", "j", "sh", "-c",
                   f"i=0; while [ ! -e {crun.tmp}/stop ]; do echo line-$i; i=$((i+1)); sleep 0.005; done; echo $i lines >&2",
                   stdout=subprocess.DEVNULL)
    path = small_disk / "j" / "round-1" / "rank-0.out"
    end = time.monotonic() + 60
    while not path.exists() or path.stat().st_size < 100:
        assert time.monotonic() < end
        time.sleep(0.01)
    with pytest.raises(OSError), open(small_disk / "filler", "wb", buffering=0) as f:
        while True:
            f.write(b"x" * 512)
    while b"incomplete" not in (said := p.stderr.readline()):
        assert said
    os.remove(small_disk / "filler")
    while "missing" not in path.read_text():
        assert time.monotonic() < end
        time.sleep(0.01)
    (crun.tmp / "stop").touch()
    _, err = p.communicate(timeout=60)
    assert p.returncode == 0
    count = int(re.search(rb"(\d+) lines", err)[1])
    lines = path.read_text().splitlines()
    (note,) = [l for l in lines if l.startswith("crun: ")]
    kept = [l for l in lines if l != note]
    every = [f"line-{i}" for i in range(count)]
    at = lines.index(note)
    assert kept == every[:at] + every[len(every) - (len(kept) - at):]
    missing = sum(len(l) + 1 for l in every) - sum(len(l) + 1 for l in kept)
    assert missing > 0 and note == f"crun: {missing} bytes are missing here (No space left on device)"


def test_a_limit_on_file_sizes_does_not_end_crun(crun):
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10000, 10000))
    rc, out, err = crun.run("--log-dir", crun.tmp / "l", "--run-id", "j", "sh", "-c", "seq 20000; exit 3", preexec_fn=limit)
    assert rc == 3 and out.count("\n") == 20000
    assert "is incomplete from here on: File too large" in err
    text = (crun.tmp / "l" / "j" / "round-1" / "rank-0.out").read_text()
    assert 9000 < len(text) <= 10000 and text == "".join(f"{i}\n" for i in range(1, text.count("\n") + 1))


def test_a_limit_below_a_shared_page_goes_without_it(crun):
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
    up = crun.tmp / "up"
    script = f"[ $RANK = 0 ] && {{ echo 0; touch {up}; exec sleep 60; }}; while [ ! -e {up} ]; do sleep 0.02; done; echo 1; exit 3"
    rc, out, err = crun.run("--nproc-per-node", 2, "sh", "-c", script, preexec_fn=limit)
    assert rc == 3 and sorted(out.splitlines()) == ["[default0]: 0", "[default1]: 1"]
    assert err.count("leaves no page to share with a worker") == 1
