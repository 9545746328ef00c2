"""What workers leave running when all of them have ended with 0."""

import signal

UPLOADER = """
import os, signal, subprocess, sys, time
here = os.environ["HERE"]
upload = f'''
import signal, sys, time
def end(*a):
    open("{here}/uploaded", "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
open("{here}/up", "w").close()
while True:
    time.sleep(1000)
'''
subprocess.Popen([sys.executable, "-c", upload], start_new_session=True)
while not os.path.exists(f"{here}/up"):
    time.sleep(0.01)
"""
STUBBORN = "trap '' TERM; (while :; do sleep 1; done) & touch $HERE/up"
WAITS = "(trap 'touch $HERE/told' TERM; touch $HERE/up; while :; do sleep 1; done) & while [ ! -e $HERE/up ]; do sleep 0.05; done"


def test_a_background_helper_may_finish(crun):
    (crun.tmp / "script.py").write_text(UPLOADER)
    rc, _, err = crun.run(crun.tmp / "script.py", extra_env={"HERE": str(crun.tmp)})
    assert rc == 0 and (crun.tmp / "uploaded").exists() and "killing it" not in err, err


def test_one_that_does_not_end_is_killed_after_five_seconds(crun):
    rc, _, err = crun.run("sh", "-c", STUBBORN, extra_env={"HERE": str(crun.tmp)})
    assert rc == 0 and "what the workers left running did not end within 5 s of SIGTERM; killing it" in err, err


def test_a_stop_signal_does_not_make_a_complete_job_incomplete(crun):
    p = crun.start("sh", "-c", WAITS, extra_env={"HERE": str(crun.tmp)}, stdin=-3,
                   preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    crun.wait_file("told")  # all workers have ended
    p.send_signal(signal.SIGTERM)
    assert p.wait(60) == 0
    crun.wait_processes_gone(10)
