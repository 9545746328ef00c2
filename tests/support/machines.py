"""Machines that share nothing but a network: each has a network namespace, a host name, an /etc/hosts and a home folder of its own. Needs root."""
import subprocess
import sys

from support import ROOT

sys.path.insert(0, str(ROOT / "tests" / "fault"))
import netns  # noqa: E402

# The process becomes the command: its pid stays the same.
INSIDE = 'hostname "$1" && mount --bind "$2" /etc/hosts && cd "$3" && shift 3 && exec "$@"'


def available():
    """Why not, or None."""
    made = subprocess.run(["unshare", "--uts", "--mount", "mount", "--bind", "/etc", "/etc"], capture_output=True, text=True, timeout=30)
    return netns.available() or (None if made.returncode == 0 else "cannot make mount namespaces: " + made.stderr.strip())


class Machine:
    def __init__(self, folder, host):
        self.name, self.host, self.addr = f"node{host.number}", host, host.addr
        self.home = folder / self.name
        self.home.mkdir()
        self.hosts = folder / f"{self.name}.hosts"
        self.env = {"HOME": str(self.home), "TMPDIR": str(self.home)}

    def knows(self, text):
        """Its /etc/hosts."""
        self.hosts.write_text(text)

    def prefix(self):
        return [*self.host.prefix(), "unshare", "--uts", "--mount", "sh", "-c", INSIDE, "sh", self.name, str(self.hosts), str(self.home)]


class Machines:
    """node1, node2 and so on, which know each other by name; each is 127.0.1.1 to itself, as Debian has it."""

    def __init__(self, folder, n):
        self.net = netns.Net(n)
        self.v = [Machine(folder, h) for h in self.net.hosts]
        for m in self.v:
            others = "".join(f"{o.addr} {o.name}\n" for o in self.v if o is not m)
            m.knows(f"127.0.0.1 localhost\n::1 localhost\n127.0.1.1 {m.name}\n{others}")

    def close(self):
        self.net.close()
