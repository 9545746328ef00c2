"""Every row of the table of endings, and that the document says the same."""

import os
import re
import signal

import pytest

from crun_run import REPO
from endings import ENDINGS, SIGNALS


@pytest.mark.parametrize("ending", [e for e, (_, args) in ENDINGS.items() if args], ids=lambda e: e.replace(" ", "-"))
def test_an_ending_has_its_code(crun, ending):
    code, args = ENDINGS[ending]
    p = crun.start(*args, extra_env={"HERE": str(crun.tmp)},
                   preexec_fn=lambda: [signal.signal(s, signal.SIG_DFL) for s in (signal.SIGINT, signal.SIGTERM)])
    if ending in SIGNALS:
        crun.wait_file("up-0")
        os.kill(crun.agent_of(p.pid) if ending == "the agent is killed" else p.pid, getattr(signal, SIGNALS[ending]))
    out, err = p.communicate(timeout=60)
    assert p.returncode == code, err.decode()
    assert crun.processes() == [] and crun.leftovers() == []


def test_the_document_has_the_same_table():
    section = open(os.path.join(REPO, "docs/reference/exit-codes.md")).read()
    told = dict(re.findall(r"^\| ([^|]+?) \| (\d+) \|", section, re.M))
    assert told == {ending: str(code) for ending, (code, _) in ENDINGS.items()}
