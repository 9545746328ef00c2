"""./dev on a machine where little is installed: what it says where packages cannot be had, and before it builds anything."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess

import pytest

from support import ROOT, run

TOOLS = ("awk", "bash", "cat", "dirname", "env", "grep", "mktemp", "readlink", "realpath", "rm", "sed", "tail", "tee")
STATUS = "git install ok installed\nprocps hold ok installed\ntmux deinstall ok config-files"


class Fresh:
    """dev in a folder where nothing is built, and a PATH that has hardly more than it needs itself."""

    def __init__(self, folder, uid):
        self.folder, self.bin = folder, folder / "bin"
        self.bin.mkdir()
        shutil.copy(ROOT / "dev", folder)
        for name in TOOLS:
            (self.bin / name).symlink_to(shutil.which(name))
        self.has("id", f"echo {uid}")
        self.has("dpkg-query", f"echo asked >>{folder}/asked; printf '{STATUS}\\n'; exit 1")

    def has(self, name, text):
        (self.bin / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.bin / name).chmod(0o755)

    def env(self):
        return {"PATH": str(self.bin), "HOME": "/nowhere", "TMPDIR": str(self.folder)}

    def dev(self, *args, **env):
        return run(self.folder / "dev", *args, env={**self.env(), **env}, timeout=60)


@pytest.fixture
def as_root(tmp_path):
    return Fresh(tmp_path, 0)


@pytest.fixture
def as_user(tmp_path):
    return Fresh(tmp_path, 1000)


@pytest.mark.parametrize("command", ["setup", "demo", "build", "peer"])
def test_without_sudo_it_says_what_root_is_to_type(as_user, command):
    as_user.has("apt-get", "exit 70")
    p = as_user.dev(command)
    assert (p.returncode, p.stdout) == (2, "") and p.stderr.count("\n") == 1
    assert p.stderr.startswith("dev: packages are missing, and there is no sudo; as root: apt-get install --no-install-recommends build-essential ")


def test_what_is_installed_is_asked_once_and_what_was_removed_is_missing(as_root):
    as_root.has("apt-get", 'echo "$@" >>' + f"{as_root.folder}/apt")
    assert as_root.dev("setup").returncode == 0
    assert (as_root.folder / "asked").read_text() == "asked\n"
    update, install = (as_root.folder / "apt").read_text().splitlines()
    assert update.startswith("update") and "--no-install-recommends" in install
    assert "tmux" in install.split() and not {"git", "procps"} & set(install.split())
    assert "DPkg::Lock::Timeout=" in install, "another apt-get, of a machine's first minutes, is waited for"


def test_how_much_is_fetched_is_shown(as_root):
    as_root.has("apt-get", '[ "$1" = update ] || echo "Reading package lists...\nNeed to get 310 MB of archives.\nGet:1 http://there a 1\nFetched 310 MB in 9s"')
    p = as_root.dev("setup")
    assert p.returncode == 0 and p.stderr == "", p.stderr
    assert re.fullmatch("apt-get installs, as root, with what they depend on: build-essential .*\nNeed to get 310 MB of archives.\nFetched 310 MB in 9s\n", p.stdout), p.stdout


def test_where_apt_get_fails_its_last_words_are_shown_and_the_others_kept(as_root):
    as_root.has("apt-get", '[ "$1" = update ] && exit\nfor n in 1 2 3 4 5 6 7 8 9; do echo "E: Failed to fetch $n" >&2; done; exit 100')
    p = as_root.dev("demo")
    *said, last = p.stderr.splitlines()
    log = pathlib.Path(re.fullmatch("dev: apt-get failed; all that it said is in (.*)", last)[1])
    assert p.returncode == 2 and said == [f"E: Failed to fetch {n}" for n in "6789"]
    assert log.read_text().count("E: Failed to fetch") == 9


LOCKED = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)"


@pytest.mark.parametrize("times", [1, 3, 1000])
def test_another_apt_get_is_waited_for_by_update_too(as_root, times):
    """Ten minutes at most; time passes by `sleep` alone."""
    counts = as_root.folder / "updates"
    as_root.has("apt-get", f'[ "$1" = update ] || exit 0\necho >>{counts}\n[ $(grep -c ^ {counts}) -gt {times} ] || {{ echo "{LOCKED}" >&2; exit 100; }}')
    as_root.has("sleep", f'echo "$1" >>{as_root.folder}/slept')
    p = as_root.dev("setup")
    slept = [int(line) for line in (as_root.folder / "slept").read_text().splitlines()]
    assert p.stdout.count("\n") == 2 and p.stdout.endswith("\nWaiting for another apt-get, 10 minutes at most\n"), p.stdout + p.stderr
    if times < 1000:
        assert (p.returncode, p.stderr, len(slept)) == (0, "", times)
    else:
        assert p.returncode == 2 and sum(slept) == 600 and LOCKED + "\ndev: apt-get failed" in p.stderr, p.stderr


def test_an_update_that_fails_otherwise_is_not_tried_again(as_root):
    as_root.has("apt-get", f"echo >>{as_root.folder}/updates; echo E: no route; exit 100")
    p = as_root.dev("setup")
    assert p.returncode == 2 and p.stderr.startswith("E: no route\ndev: apt-get failed"), p.stderr
    assert (as_root.folder / "updates").read_text() == "\n"


@pytest.mark.parametrize("during", ["update", "install"])
def test_ctrl_c_leaves_no_log(as_root, during):
    as_root.has("apt-get", f'[ "$1" != {during} ] || kill -INT 0')
    p = subprocess.run(["env", "--default-signal=INT", as_root.folder / "dev", "setup"], env=as_root.env(), stdin=subprocess.DEVNULL, capture_output=True,
                       text=True, timeout=60, start_new_session=True)
    assert (p.returncode, p.stderr) == (-signal.SIGINT, "")
    assert not list(as_root.folder.glob("crun-dev-apt*"))


@pytest.mark.parametrize("args, why", [
    (["tset"], "unknown command 'tset'; ./dev help lists them"), (["demo", "runs"], "demo takes options only"),
    (["install", "--laucher"], "install: unknown option '--laucher'"), (["install", "--launcher", "--prefix=/usr"], "install: unknown option '--prefix=/usr'")])
def test_what_cannot_be_done_is_refused_before_packages_are_installed(as_user, args, why):
    p = as_user.dev(*args)
    assert (p.returncode, p.stdout, p.stderr) == (2, "", f"dev: {why}\n")


def test_help_of_the_demo_needs_no_build(as_user):
    p = as_user.dev("demo", "--help")
    assert p.returncode == 0 and p.stdout.startswith("usage: ./dev demo [--seed N] [--out DIR] "), p.stderr


@pytest.mark.parametrize("args", [["build"], ["install", "prefix"], ["install", "--launcher", "prefix"]])
def test_the_kinds_of_gpus_that_are_asked_for_reach_every_build(as_user, args):
    as_user.has("dpkg-query", 'for name; do echo "$name install ok installed"; done')
    as_user.has("ninja", "")
    as_user.has("meson", 'echo "meson $*"')
    p = as_user.dev(*args, CRUN_GPU_ARCHS="90")
    assert p.returncode == 0 and re.match(r"meson setup build\S* .*-Dgpu_archs=90( |$)", p.stdout), p.stdout + p.stderr


@pytest.mark.parametrize("args, here, archs", [(["build"], None, ["90"]), (["build", "--debug"], "8.6", ["86", "90"]), (["build"], "9.0\n9.0", ["90"]),
                                               (["build"], "6.1", ["90"]), (["install", "prefix"], None, []), (["install", "prefix"], "9.0", [])])
def test_a_developers_build_is_for_the_gpus_that_are_here_and_a_release_for_all(as_user, args, here, archs):
    as_user.has("dpkg-query", 'for name; do echo "$name install ok installed"; done')
    as_user.has("ninja", "")
    as_user.has("meson", 'echo "meson $*"')
    for tool in ("tr", "sort", "paste"):
        (as_user.bin / tool).symlink_to(shutil.which(tool))
    if here:
        as_user.has("nvidia-smi", f"printf '{here}\n'")
    p = as_user.dev(*args)
    assert p.returncode == 0, p.stderr
    assert re.findall(r"-Dgpu_archs=(\S+)", p.stdout.splitlines()[0]) == ([",".join(archs)] if archs else []), p.stdout


@pytest.mark.parametrize("has, asked, said", [(["80", "90"], "90", ["configure build -Dgpu_archs=90"]), (["80", "90"], "80,90", []), (["80", "90"], "", []),
                                               (["80", "90"], "80, 90", [])])
def test_a_folder_that_is_there_is_configured_for_the_kinds_of_gpus_that_are_asked_for(as_user, has, asked, said):
    info = as_user.folder / "build/meson-info"
    info.mkdir(parents=True)
    (as_user.folder / "build/tests").mkdir()
    (as_user.folder / "build/build.ninja").touch()
    (info / "intro-buildoptions.json").write_text(json.dumps([{"name": "tests", "value": "auto"}, {"name": "gpu_archs", "value": has}]))
    names = (ROOT / "dev").read_text().partition("FOR_LAUNCHER=(")[2].partition("packages=(")[0]
    (as_user.folder / "build/packages-seen").write_text("\n".join(re.findall(r"[\w.+-]+", names)))
    as_user.has("dpkg-query", 'for name; do echo "$name install ok installed"; done')
    as_user.has("meson", f'echo "$*" >>{as_user.folder}/meson')
    as_user.has("ninja", f'echo ninja >>{as_user.folder}/meson')
    p = as_user.dev("build", CRUN_GPU_ARCHS=asked)
    assert p.returncode == 0, p.stderr
    assert (as_user.folder / "meson").read_text().splitlines() == [*said, "ninja"]


@pytest.mark.parametrize("there", [False, True])
def test_a_tree_that_was_moved_or_copied_is_told_what_to_remove(as_user, there):
    info = as_user.folder / "build/meson-info/meson-info.json"
    info.parent.mkdir(parents=True)
    old = as_user.folder / "ann/m\u00fcll/crun"
    if there:
        old.mkdir(parents=True)
    info.write_text(json.dumps({"directories": {"source": str(old)}}))
    for name in ("meson", "ninja", "apt-get"):
        as_user.has(name, "exit 70")
    p = as_user.dev("build")
    assert (p.returncode, p.stderr) == (2, f"dev: build was set up for {old}, not for this tree: rm -r build, then type the same again\n")


def test_a_tree_may_be_reached_by_another_name(as_user, tmp_path_factory):
    info = as_user.folder / "build/meson-info/meson-info.json"
    info.parent.mkdir(parents=True)
    name = tmp_path_factory.mktemp("names") / "crun"
    name.symlink_to(as_user.folder)
    info.write_text(json.dumps({"directories": {"source": str(name)}}))
    as_user.has("dpkg-query", 'for name; do echo "$name install ok installed"; done')
    as_user.has("meson", "")
    as_user.has("ninja", "")
    p = as_user.dev("build")
    assert p.returncode == 0, p.stderr


@pytest.mark.parametrize("name, odd", [("my crun", " "), ("ann's", "'"), ("a,b", ","), ("$b", "$")])
@pytest.mark.parametrize("command", ["build", "test", "demo", "install"])
def test_a_folder_whose_name_is_taken_apart_is_refused_before_anything_is_done(as_user, tmp_path_factory, name, odd, command):
    folder = tmp_path_factory.mktemp("odd") / name
    shutil.copytree(as_user.folder, folder, symlinks=True)
    p = run(folder / "dev", command, env=as_user.env(), timeout=60)
    assert (p.returncode, p.stdout) == (2, "") and not (folder / "asked").exists()
    assert p.stderr == f"dev: this tree is in '{folder}', and builds and tests cannot have '{odd}' in a path: move it, or clone it into another folder\n"


def test_a_folder_with_other_letters_is_as_good_as_any(as_user, tmp_path_factory):
    as_user.has("apt-get", "exit 70")
    folder = tmp_path_factory.mktemp("odd") / "M\u00fcll_a+b=d@e~1"
    shutil.copytree(as_user.folder, folder, symlinks=True)
    p = run(folder / "dev", "build", env=as_user.env(), timeout=60)
    assert p.returncode == 2 and p.stderr.startswith("dev: packages are missing"), p.stderr


def test_a_build_folder_is_set_up_again_for_packages_that_came_since_whoever_installed_them(as_root):
    """`./dev demo` needs none of the tests' packages; `./dev fmt`, apt-get typed by hand or CI's cache may have brought them."""
    called = as_root.folder / "called"
    as_root.has("apt-get", "exit 0")
    as_root.has("meson", f'echo "$1 $2" >>{called}; mkdir -p build/tests; >build/build.ninja')
    as_root.has("ninja", f"echo ninja >>{called}")
    as_root.has("python3", "exit 0")
    as_root.has("nproc", "echo 2")
    (as_root.bin / "mkdir").symlink_to(shutil.which("mkdir"))
    text = (as_root.folder / "dev").read_text().replace("PYTHON=/usr/bin/python3", f"PYTHON={as_root.bin}/python3")
    as_root.has("dpkg-query", 'for name; do echo "$name install ok installed"; done')
    for more, calls in (("", ["setup build", "ninja"]), ("", ["ninja"]), ("another", ["setup --reconfigure", "ninja"]), ("another", ["ninja"])):
        (as_root.folder / "dev").write_text(text.replace("FOR_ALL=(", f"FOR_ALL=({more} "))
        called.write_text("")
        p = as_root.dev("build")
        assert (p.returncode, called.read_text().splitlines()) == (0, calls), p.stdout + p.stderr


@pytest.mark.parametrize("version, has_pip, used", [("Debian clang-format version 14.0.6", False, "clang-format"),
                                                    ("Debian clang-format version 19.1.7 (3)", True, "build/clang-format/clang_format/data/bin/clang-format"),
                                                    (None, True, "build/clang-format/clang_format/data/bin/clang-format"), (None, False, None)])
def test_fmt_takes_a_clang_format_of_one_version(as_user, version, has_pip, used):
    as_user.has("git", "echo a.c")
    (as_user.folder / "a.c").touch()
    if version:
        as_user.has("clang-format", f'[ "$1" != --version ] || echo "{version}"')
    as_user.has("python3", 'case "$*" in *--version) exit 0;; *"--no-deps --target build/clang-format clang-format==14.0.6") '
                f"[ {int(has_pip)} = 1 ] || exit 1; mkdir -p build/clang-format/clang_format/data/bin; to=build/clang-format/clang_format/data/bin/clang-format; "
                "printf '#!/bin/sh\\necho fetched\\n' >$to; chmod +x $to;; *) exit 70;; esac")
    (as_user.folder / "dev").write_text((as_user.folder / "dev").read_text().replace("PYTHON=/usr/bin/python3", f"PYTHON={as_user.bin}/python3"))
    for name in ("chmod", "mkdir", "printf"):
        (as_user.bin / name).symlink_to(shutil.which(name))
    p = as_user.dev("fmt", "--check")
    if used:
        assert p.returncode == 0 and re.search(rf"^(\S*/)?{used}: ", p.stdout, re.M), p.stdout + p.stderr
    else:
        assert p.returncode == 2 and p.stderr.startswith("dev: fmt needs clang-format 14.0, which could not be fetched from PyPI; "), p.stderr


def test_fmt_reads_no_keyboard_where_git_lists_nothing(as_user):
    as_user.has("git", "echo fatal: not a git repository >&2; exit 128")
    p = as_user.dev("fmt", "--check")
    assert (p.returncode, p.stderr) == (2, "fatal: not a git repository\ndev: fmt: git lists no sources here\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_the_time_of_packages_is_the_commits_in_another_users_tree(as_root):
    script = as_root.folder / "packaging/image/image.sh"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\necho $SOURCE_DATE_EPOCH\n")
    script.chmod(0o755)
    (as_root.bin / "git").symlink_to(shutil.which("git"))
    as_root.has("dpkg-query", 'for name; do echo "$name install ok installed"; done')
    as_root.has("stat", "echo 7")
    when = {"GIT_AUTHOR_DATE": "1700000000 +0000", "GIT_COMMITTER_DATE": "1700000000 +0000", "PATH": os.environ["PATH"], "HOME": "/nowhere"}
    for args in (["init", "-q"], ["add", "dev"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first"]):
        assert run("git", *args, cwd=as_root.folder, env=when).returncode == 0
    os.chown(as_root.folder, 12345, 12345)
    os.chown(as_root.folder / ".git", 12345, 12345)
    p = as_root.dev("image")
    assert (p.returncode, p.stdout) == (0, "1700000000\n"), p.stderr


@pytest.mark.parametrize("args, folder, remedy", [(["build"], ".", ""), (["build", "--asan"], "build-asan", ""),
                                                  (["install", "opt/x/y"], "opt", ": take another PREFIX, ~/.local for example, or be root")])
def test_a_folder_that_cannot_be_written_is_told_before_the_build(as_user, args, folder, remedy):
    """Root, without what lets it write to any folder, is as others."""
    barred = as_user.folder / folder
    barred.mkdir(exist_ok=True)
    for name in ("meson", "ninja", "apt-get"):
        as_user.has(name, "exit 70")
    barred.chmod(0o555)
    humble = (shutil.which("setpriv"), "--bounding-set=-dac_override") if os.geteuid() == 0 else ()
    p = run(*humble, as_user.folder / "dev", *args, env=as_user.env(), cwd=as_user.folder, timeout=60)
    assert (p.returncode, p.stdout, p.stderr) == (2, "", f"dev: {barred.resolve()} cannot be written by this user{remedy}\n")
