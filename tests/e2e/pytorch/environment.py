"""The environment of a worker beside torchrun's: recorded of torchrun, asked of crun, and what differs as a table."""

import json
import pathlib
import re
import subprocess

RECORDED = pathlib.Path(__file__).with_name("torchrun_environment.json")
DUMP = "import json, os; os.environ['RANK'] == '1' and json.dump(dict(os.environ), open(os.environ['OUT'], 'w'))\n"
OPTIONS = ["--nproc_per_node", "2", "--max-restarts", "3"]
OWN = {"PATH", "HOME", "OUT", "PWD", "SHLVL", "_", "LC_CTYPE", "OMP_NUM_THREADS"}  # the last one: torchrun 1, crun the cores' share


def ask(launcher, folder):
    """What the worker of rank 1 gets of this launcher."""
    script, out = folder / "dump.py", folder / "environment.json"
    script.write_text(DUMP)
    subprocess.run([*launcher, *OPTIONS, script], env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "OUT": str(out)}, check=True, timeout=120,
                   capture_output=True)
    return normal(json.loads(out.read_text()))


def normal(env):
    forms = {"MASTER_PORT": (r"\d+", "<port>"), "TORCHELASTIC_RUN_ID": (r"[0-9a-f]{8}-.*", "<random>"), "CRUN_PAGE_FD": (r"\d+", "<number>"),
             "CRUN_NODE_ID": (r".*", "<host, process id>"), "CRUN_STORE": (r":\d+$", ":<port>"),
             "NCCL_RAS_ADDR": (r"^127\.\d+\.\d+", "127.<x>.<y>")}
    env = {k: v for k, v in env.items() if k not in OWN}
    for name, (pattern, text) in forms.items():
        if name in env:
            env[name] = re.sub(pattern, text, env[name], count=1)
    if re.fullmatch(r"[0-9a-f]{32}", env.get("TORCHELASTIC_RUN_ID", "")):
        env["TORCHELASTIC_RUN_ID"] = "<32 random digits>"
    file = env.get("TORCHELASTIC_ERROR_FILE", "")
    env["TORCHELASTIC_ERROR_FILE"] = re.sub(r"^.*/(?=attempt_|round-)", "<folder>/", file)
    return env


def recorded():
    return normal(json.loads(RECORDED.read_text())["environment"])


def table(torchrun, crun):
    lines = ["| variable | torchrun | crun |", "|---|---|---|", "| `OMP_NUM_THREADS` | 1 | the worker's share of the cores |"]
    cell = lambda env, name: f"`{env[name]}`" if name in env else "–"
    for name in sorted(torchrun.keys() | crun.keys()):
        if torchrun.get(name) != crun.get(name):
            lines.append(f"| `{name}` | {cell(torchrun, name)} | {cell(crun, name)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":  # CRUN FOLDER: prints the table for docs/reference/environment.md
    import sys
    print(table(recorded(), ask([sys.argv[1]], pathlib.Path(sys.argv[2]))), end="")
