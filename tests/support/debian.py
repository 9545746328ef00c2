"""Roots of Debian, for what is to be tried where nothing else is installed."""
import shutil
import subprocess

from support import ROOT, run


def copy_of_the_tree(folder):
    """What git has here, and what it would take."""
    names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True).stdout
    folder.mkdir(parents=True)
    subprocess.run(["xargs", "-0", "cp", "--parents", "-t", folder], input=names, cwd=ROOT, check=True)
    return folder


class Root:
    """A Debian with nothing in it, in a folder."""

    ENTER = """
        root=$1 bound=$2
        shift 2
        mount -t proc proc "$root/proc"
        [ -z "$bound" ] || { mkdir -p "$root$bound"; mount --bind -o ro "$bound" "$root$bound"; }
        exec chroot "$root" env -i STARTED_BY_TEST="$STARTED_BY_TEST" PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 "$@"
    """

    def __init__(self, folder):
        self.folder = folder

    def put(self, name, *files):
        (self.folder / name).mkdir(exist_ok=True)
        for path in files:
            shutil.copy(path, self.folder / name)
        return self.folder / name

    def run(self, *command, bound="", timeout=1800):
        """In namespaces of its own: whatever happens, nothing stays mounted, and nothing runs on. bound: a folder of this machine that is seen there."""
        return run("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", self.ENTER, "sh", self.folder, bound, *command, timeout=timeout)
