"""Running the command lines of other trainers on small data."""
import os
import subprocess

from support import TRAINER

FOREIGN = ("SLURM_", "OMPI_", "PMI", "MPI_", "TORCHELASTIC_", "CRUN_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_")


def clean(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
    return dict(env, **{k: str(v) for k, v in more.items()})


def start(cwd, line, **env):
    return subprocess.Popen([str(TRAINER), *line.split()], cwd=cwd, env=clean(**env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result(p, timeout=120):
    p.stdout_text, p.stderr_text = p.communicate(timeout=timeout)
    return p


def trained(cwd, line, **env):
    p = result(start(cwd, line, **env))
    assert p.returncode == 0, f"{line}: {p.returncode}\n{p.stderr_text}"
    return p


def refused(cwd, line, code, *texts, **env):
    p = result(start(cwd, line, **env), timeout=60)
    assert p.returncode == code, f"{line}: {p.returncode}, expected {code}\n{p.stderr_text}"
    for text in texts:
        assert text in p.stderr_text, p.stderr_text
    return p


def together(machines):
    """[(cwd, line, env)]: all at once, as typed on several machines."""
    ps = [start(cwd, line, **env) for cwd, line, env in machines]
    ps = [result(p) for p in ps]
    assert [p.returncode for p in ps] == [0] * len(ps), [p.stderr_text for p in ps]
    return ps


def config(line, cwd="/", **env):
    """name -> value of --print-config."""
    p = trained(cwd, line + " --print-config", **env)
    return {k: v.split("  #")[0].strip() for k, v in (row.split(" =", 1) for row in p.stdout_text.splitlines())}
