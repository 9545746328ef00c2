"""One lane of tests/run.py, a process of its own: runs commands, so many at a time, and is the parent of every orphan they leave.

usage: lane.py SPEC, a file of JSON: jobs [{name, argv, cwd, env, seconds, log}], at_once, heavy, load (what Others writes), results.
A line of JSON is appended to results for each event:
  {"started": name}
  {"ended": name, "code", "seconds", "cpu", "late": whether it had to be killed}   code: exit status, or minus the signal
  {"orphan": name of a job, or the mark in its environment, or null, "cpu"}        a process whose parent died before it
  {"lane_cpu": seconds of everything that ran here}                                the last line
heavy: jobs leave the processor to whoever has to answer in time. They run under SCHED_IDLE while nobody else works on this machine, and at nice 10
while somebody does; when that changes, running jobs change, too. That takes CAP_SYS_NICE; without it they stay at nice 10. crun's workers begin
sessions of their own, each of which the kernel gives as much as any other: these are made as nice (/proc/PID/autogroup)."""
import ctypes
import json
import os
import pathlib
import resource
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from runner import inherit, procs  # noqa: E402

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CAP_SYS_NICE = 23
MARK = b"STARTED_BY_TEST="  # tests/support/fixtures.py
WAKES = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}


def may_renice():
    with open("/proc/self/status", encoding="utf-8") as f:
        return any(line.startswith("CapEff:") and int(line.split()[1], 16) >> CAP_SYS_NICE & 1 for line in f)


def mark_of(pid):
    """What tells whose test this process belongs to; None if nothing does."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as f:
            return next((v[len(MARK):].decode() for v in f.read().split(b"\0") if v.startswith(MARK)), None)
    except OSError:
        return None


def kill_all_below(pid, seconds=10):
    """And wait until they are gone."""
    end = time.monotonic() + seconds
    while (left := procs.descendants(pid)) and time.monotonic() < end:
        for p in left:
            try:
                os.kill(p, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        time.sleep(0.01)


class Job:
    def __init__(self, spec, lane):
        self.spec, self.begun, self.late, self.beside_others = spec, time.monotonic(), False, False
        self.pid = os.fork()
        if self.pid == 0:
            self.become(lane)

    def become(self, lane):
        try:
            os.setpgid(0, 0)
            inherit.signals()
            if lane.heavy:
                os.nice(10)
                lane.set_policy(0)
            out = os.open(self.spec["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(out, 1)
            os.dup2(out, 2)
            os.closerange(3, 1024)
            os.chdir(self.spec["cwd"])
            os.execvpe(self.spec["argv"][0], self.spec["argv"], self.spec["env"])
        except BaseException as e:  # pylint: disable=broad-except
            os.write(2, f"lane.py: {self.spec['argv'][0]}: {e}\n".encode())
        os._exit(127)

    def end_if_late(self, busy):
        self.beside_others |= busy  # what they took is not given back when they go
        limit = self.spec["seconds"] * (2 if self.beside_others else 1) if self.spec["seconds"] else None
        if limit and not self.late and time.monotonic() - self.begun > limit:
            self.late = True
            below = [self.pid, *procs.descendants(self.pid)]
            for pid in below:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass


class Lane:
    def __init__(self, spec):
        self.todo, self.at_once, self.heavy, self.load = list(reversed(spec["jobs"])), spec["at_once"], spec["heavy"], spec["load"]
        self.results = open(spec["results"], "a", encoding="utf-8", buffering=1)
        self.running = {}  # by pid
        self.marks = {}  # of orphans, by pid
        self.sessions, self.next_look = {os.getsid(0): None}, 0.0  # niceness of those that jobs began
        self.idle = self.heavy and may_renice() and not procs.others_work(self.load)

    def tell(self, **event):
        print(json.dumps(event), file=self.results)

    def set_policy(self, thread):
        if may_renice():
            os.sched_setscheduler(thread, os.SCHED_IDLE if self.idle else os.SCHED_OTHER, os.sched_param(0))

    def change_policy(self):
        """Where others came or went; of new sessions."""
        if time.monotonic() < self.next_look:
            return
        self.next_look = time.monotonic() + 1
        changed = may_renice() and self.idle == procs.others_work(self.load)
        self.idle = self.idle != changed
        look = [os.getpid()]
        while look:
            for pid in procs.children(look.pop()):
                look.append(pid)
                try:
                    self.lower(pid, changed)
                except OSError:
                    pass  # it ended

    def lower(self, pid, changed):
        nice, session = 19 if self.idle else 10, procs.Stat(pid).session
        if self.sessions.get(session, 0) not in (nice, None):
            self.sessions[session] = nice
            with open(f"/proc/{pid}/autogroup", "w", encoding="utf-8") as f:
                f.write(str(nice))
        for thread in os.listdir(f"/proc/{pid}/task") if changed else ():
            self.set_policy(int(thread))

    def start(self):
        while self.todo and len(self.running) < self.at_once:
            job = Job(self.todo.pop(), self)
            self.running[job.pid] = job
            self.tell(started=job.spec["name"])

    def reap(self):
        """-> whether there are children left"""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return False
            if ended is None:
                return True
            group = procs.Stat(ended.si_pid).group
            pid, status, usage = os.wait4(ended.si_pid, 0)
            cpu = round(usage.ru_utime + usage.ru_stime, 3)
            job = self.running.pop(pid, None)
            if job:
                self.tell(ended=job.spec["name"], code=os.waitstatus_to_exitcode(status), seconds=round(time.monotonic() - job.begun, 2), cpu=cpu, late=job.late)
                continue
            of = next((j.spec["name"] for j in self.running.values() if j.pid == group), None)
            self.tell(orphan=self.marks.pop(pid, None) or of, cpu=cpu)

    def look_at_orphans(self):
        """While they live: the dead have no environment."""
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="utf-8") as f:
            for pid in map(int, f.read().split()):
                if pid not in self.running and pid not in self.marks:
                    self.marks[pid] = mark_of(pid)

    def run(self):
        left_until = None
        while True:
            self.start()
            more = self.reap()
            if not self.running and not self.todo:
                left_until = left_until or time.monotonic() + 5  # orphans that are about to end
                if not more or time.monotonic() > left_until:
                    break
            woken = signal.sigtimedwait(WAKES, 0.2)
            if woken and woken.si_signo != signal.SIGCHLD:
                break
            self.look_at_orphans()
            if self.heavy:
                self.change_policy()
            for job in self.running.values():
                job.end_if_late(procs.others_work(self.load))
        kill_all_below(os.getpid())
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        self.tell(lane_cpu=round(sum(u.ru_utime + u.ru_stime for u in used), 2))


def main():
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, WAKES)
    with open(sys.argv[1], encoding="utf-8") as f:
        Lane(json.load(f)).run()


if __name__ == "__main__":
    main()
