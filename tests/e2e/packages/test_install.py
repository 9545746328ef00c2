"""./dev can be started; meson install: what an example needs to compile and to run; manual pages."""
import os
import re
import shlex
import shutil
import sys

import pytest

from support import BUILD, CRUN, RENDEZVOUSD, ROOT, TRAINER, run

sys.path.insert(0, str(ROOT / "tests" / "e2e" / "docs"))
from pages import blocks  # noqa: E402


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """The prefix that the build was told, below a folder."""
    top = tmp_path_factory.mktemp("install")
    p = run("meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", top, "--quiet", timeout=300)
    assert p.returncode == 0, p.stdout + p.stderr
    return next(top.rglob("bin/crun")).parent.parent


@pytest.mark.parametrize("name", ["dev", "packaging/zig.sh", "packaging/image/image.sh"])
def test_what_is_started_by_its_name_may_be(name):
    assert (ROOT / name).stat().st_mode & 0o111 == 0o111


def test_an_example_compiles_and_runs_as_the_page_shows(prefix, crun, tmp_path):
    """In the tree, typed as it stands there."""
    if not shutil.which("cc") or not shutil.which("pkg-config"):
        pytest.skip("no C compiler")
    block, = [b for b in blocks((ROOT / "docs/start/installing.md").read_text()) if b.needs == "install"]
    configured = re.search(r"^prefix=(.*)$", next(prefix.rglob("crun.pc")).read_text(), re.M)[1]
    for folder in ("home", "tree"):
        (tmp_path / folder).mkdir()
    (tmp_path / "home/.local").symlink_to(prefix)
    for path in ROOT.iterdir():
        (tmp_path / "tree" / path.name).symlink_to(path)
    env = crun.env | {"HOME": str(tmp_path / "home"), "PATH": f"{prefix}/bin:/usr/bin:/bin", "PKG_CONFIG_SYSROOT_DIR": str(prefix).removesuffix(configured)}
    p = run("bash", "-ec", "\n".join(command for command, _ in block.commands()), env=env, cwd=tmp_path / "tree")
    assert p.returncode == 0 and "rank 1 of 2: hello" in p.stdout, p.stdout + p.stderr


def test_a_prefix_may_have_blanks_quotes_and_any_letter(tmp_path):
    top = tmp_path / "it's \"my\" $HOME ü"
    p = run("meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", top, "--quiet", timeout=300)
    assert p.returncode == 0, p.stdout + p.stderr
    bin_, data = next(top.rglob("bin/crun")).parent, top / "data set"
    p = run(bin_ / "trainer", "make-data", "shapes", "--out", data, "--classes", 4, "--train-images", 32, "--test-images", 16, "--image-size", 28)
    assert p.returncode == 0, p.stderr
    script = top / "a job"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(str(bin_ / "trainer"))} "$@"\n')
    script.chmod(0o755)
    p = run(bin_ / "crun", "--standalone", "--nproc_per_node", 2, "--log-dir", top / "logs of it", "--run-id", "j", "--event-log", top / "what came",
            script, "--train-data", data / "train", "--test-data", data / "val", "--arch", "mlp", "--image-size", 28, "--num-channels", 1,
            "--device", "ref", "--batch-size", 16, "--num-epochs", 1, "--checkpoint-dir", top / "check points")
    assert p.returncode == 0, p.stdout + p.stderr
    assert (top / "check points" / "latest").exists() and (top / "what came").exists()
    assert list((top / "logs of it" / "j").iterdir())


def test_the_name_that_means_this_program_everywhere_is_installed(prefix):
    assert run(prefix / "bin/crun-launcher", "--version").stdout == run(CRUN, "--version").stdout != ""


def test_the_python_module_finds_the_library_of_its_prefix(prefix, crun):
    del crun.env["LIBCRUN"]
    module = next(prefix.rglob("crun/__init__.py")).parent
    assert not list(module.rglob("__pycache__")) and (module / "py.typed").exists()
    crun.env["PYTHONPATH"] = str(module.parent)
    rc, out, err = crun.run("--nproc-per-node", 2, "--no-log-prefix", ROOT / "docs/examples/worker.py", 5)
    assert rc == 0 and "rank 1 of 2: hello" in out, err


def test_every_program_and_command_has_a_manual_page(prefix):
    pages = {p.name.removesuffix(".1") for p in (prefix / "share/man/man1").glob("*.1")}
    commands = re.search(r"is not a command; (.*) are$", run(TRAINER, "nosuch").stderr.strip())[1]
    trainer = {f"trainer-{c}" for c in re.sub(r" \(the default\)|,| and", " ", commands).split()} - {"trainer-train"}
    crun = {f"crun-{c}" for c in ("admin", "chaos", "doctor", "drain", "launch", "logs", "stacks", "status", "stop", "topo")}
    assert pages >= {"crun", "rendezvousd", "trainer"} | crun | trainer


@pytest.mark.parametrize("program", [CRUN, RENDEZVOUSD, TRAINER])
def test_pages_are_what_groff_takes_and_say_how_a_program_ends(program):
    page = run(program, "--options-man").stdout
    assert "\n.SH EXIT STATUS\n" in page and "\\fB75\\fR\n" in page and re.search(r"\.SH NAME\n\w+ \\- .*[^.]\n", page)
    if program == CRUN:
        assert "\n.SH ENVIRONMENT\n" in page and "\\fBCRUN_STORE\\fR\n" in page
    if not shutil.which("groff"):
        pytest.skip("no groff")
    p = run("groff", "-man", "-ww", "-z", input=page)
    assert (p.returncode, p.stderr) == (0, "")


def test_the_examples_of_the_manual_are_what_crun_takes(tmp_path):
    page = run(CRUN, "--options-man").stdout.replace("\\-", "-")
    lines = re.findall(r"^\.TP\n\\fB(.*)\\fR$", page[page.index(".SH EXAMPLES"):page.index(".SH FILES")], re.M)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("CRUN_", "PET_", "SLURM_", "PBS_", "OMPI_", "PMIX_"))}
    (tmp_path / "train.py").write_text("")
    assert len(lines) > 5
    for line in lines:
        words = line[line.index("crun ") + 5:].split()
        if words[0] == "status" or line.startswith("srun"):
            continue
        words = ["1" if w == "gpu" else w for w in words]
        p = run(CRUN, "--dry-run", *words, env=env, cwd=tmp_path)
        assert p.returncode == 0, line + p.stderr
