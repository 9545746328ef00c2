"""Several hosts on one machine: network namespaces on one bridge. Needs the right to make them (root, or CAP_NET_ADMIN and CAP_SYS_ADMIN)."""
import secrets
import subprocess

from processes import wait


def new_name():
    """Of a namespace or a link: nobody else's, whatever process ids they see."""
    return f"crun-{secrets.token_hex(4)}"


def ip(*args, ns=None, check=True):
    where = ["-n", ns] if ns else []
    return subprocess.run(["ip", *where, *map(str, args)], check=check, capture_output=True, text=True, timeout=30)


def available():
    """Why not, or None."""
    name = new_name()
    try:
        made = ip("netns", "add", name, check=False)
        if made.returncode:
            return "cannot make network namespaces: " + made.stderr.strip()
        veth = ip("link", "add", "v0", "type", "veth", "peer", "name", "v1", ns=name, check=False)
        ip("netns", "del", name)
        return None if veth.returncode == 0 else "cannot make virtual links: " + veth.stderr.strip()
    except FileNotFoundError:
        return "there is no ip(8) here"


class Host:
    def __init__(self, net, number):
        self.net, self.number = net, number
        self.ns = f"{net.name}-{number}"
        self.addr = f"10.99.0.{number}"
        self.port_of_switch = f"p{number}"
        ip("netns", "add", self.ns)
        ip("link", "set", "lo", "up", ns=self.ns)
        ip("link", "add", self.port_of_switch, "type", "veth", "peer", "name", "eth0", "netns", self.ns, ns=net.switch)
        ip("link", "set", self.port_of_switch, "master", "br0", "up", ns=net.switch)
        ip("addr", "add", f"{self.addr}/24", "dev", "eth0", ns=self.ns)
        ip("link", "set", "eth0", "up", ns=self.ns)
        wait(f"carrier of {self.ns}", lambda: "state UP" in ip("-o", "link", "show", "eth0", ns=self.ns).stdout)  # the kernel finds it a moment later

    def prefix(self):
        """What to put in front of a command so that it runs here; the process stays the same (exec)."""
        return ["nsenter", f"--net=/run/netns/{self.ns}"]

    def cut(self):
        """Nothing comes or goes; nobody is told."""
        ip("link", "set", self.port_of_switch, "down", ns=self.net.switch)

    def heal(self):
        ip("link", "set", self.port_of_switch, "up", ns=self.net.switch)

    def deaf_to_us(self, other):
        """What this host sends to the other is lost; the other way works."""
        ip("route", "add", "blackhole", f"{other.addr}/32", ns=self.ns)

    def hears_us(self, other):
        ip("route", "del", "blackhole", f"{other.addr}/32", ns=self.ns)


class Net:
    def __init__(self, hosts):
        self.name = new_name()
        self.switch = f"{self.name}-sw"
        self.hosts = []
        ip("netns", "add", self.switch)
        ip("link", "add", "br0", "type", "bridge", "stp_state", 0, "forward_delay", 0, ns=self.switch)
        ip("link", "set", "br0", "up", ns=self.switch)
        for i in range(hosts):
            self.hosts.append(Host(self, i + 1))

    def close(self):
        for h in self.hosts:
            ip("netns", "del", h.ns, check=False)
        ip("netns", "del", self.switch, check=False)
