"""The callbacks for Lightning and Hugging Face's Trainer, driven by loops that call them in the order in which those trainers do."""
import signal
import sys

import pytest

from processes import wait
from support import CRUN, run

STUBS = """
import sys, types

def package(name, **members):
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module

class Base:
    def on_sanity_check_start(self, *args):
        pass
    on_train_start = on_sanity_check_start

package("torch")
package("transformers", TrainerCallback=Base, TrainerState=Base)
package("lightning")
package("lightning.pytorch")
package("lightning.pytorch.callbacks", Callback=Base)
sys.modules["torch"].distributed = types.SimpleNamespace(is_available=lambda: False)
"""

LIGHTNING = STUBS + """
import os, signal, time
import crun
from crun.integrations.lightning import CrunCallback, samples_in

class Batch:
    shape = (8, 3)

assert samples_in({"x": Batch()}) == samples_in([Batch(), Batch()]) == 8 and samples_in(["text"]) == 0
callback = CrunCallback(os.path.join(os.environ["TMPDIR"], "resume.ckpt"))
assert callback.resume_from() is None

class Trainer:
    global_step, world_size, log_every_n_steps, sanity_checking = 0, crun.info().world_size, 2, True
    class strategy:
        @staticmethod
        def reduce_boolean_decision(flag, all):
            return crun.store.add(f"stop-{Trainer.global_step}", int(flag)) > 0 if crun.info().round else flag
    @staticmethod
    def save_checkpoint(path):
        open(path, "w").write(str(Trainer.global_step))

def take_sigterm():  # as Lightning does between on_fit_start and on_train_start, and what it does then
    before = signal.getsignal(signal.SIGTERM)
    def theirs(signo, frame):
        print("a broadcast in the midst of whatever it was", flush=True)
        if callable(before):
            before(signo, frame)
    signal.signal(signal.SIGTERM, theirs)

def fit(steps):
    callback.on_fit_start(Trainer, None)
    take_sigterm()
    callback.on_sanity_check_start(Trainer, None)
    callback.on_validation_start(Trainer, None)
    callback.on_validation_end(Trainer, None)
    Trainer.sanity_checking = False
    callback.on_train_start(Trainer, None)
    for i in range(steps):
        callback.on_train_batch_start(Trainer, None, None, i)
        time.sleep(0.01)
        if i == 5:
            print("up", flush=True)
        Trainer.global_step += 1
        callback.on_train_batch_end(Trainer, None, {"loss": 0.25}, [Batch(), Batch()], i)
        if i == 7:
            callback.on_save_checkpoint(Trainer, None, {})
    callback.on_train_end(Trainer, None)
    print("end", flush=True)

fit(int(sys.argv[1]))
"""

HUGGING_FACE = STUBS + """
import time, types
import crun
from crun.integrations.huggingface import CrunCallback, any_rank

assert any_rank(True, None) and not any_rank(False, None)
callback = CrunCallback(agree_every=2)
args = types.SimpleNamespace(train_batch_size=8, gradient_accumulation_steps=2, world_size=1, device=None)
state, control = types.SimpleNamespace(global_step=0, max_steps=int(sys.argv[1])), types.SimpleNamespace(should_save=False, should_training_stop=False)

callback.on_train_begin(args, state, control)
for i in range(int(sys.argv[1])):
    time.sleep(0.01)
    if i == 5:
        print("up", flush=True)
    state.global_step += 1
    control.should_save = False
    callback.on_step_end(args, state, control)
    callback.on_log(args, state, control, logs={"loss": 0.25})
    if control.should_save:
        print("saved", flush=True)
        callback.on_save(args, state, control)
    if control.should_training_stop:
        break
callback.on_train_end(args, state, control)
print("end", flush=True)
"""


@pytest.mark.parametrize("text", [LIGHTNING, HUGGING_FACE], ids=["lightning", "hugging-face"])
def test_a_run_to_its_end(crun, script, text):
    rc, out, err = crun.run("--no-log-prefix", script(text), 12)
    assert (rc, out) == (0, "up\nend\n"), err


AFTER = {
    "lightning": (LIGHTNING, "callback.on_validation_start(Trainer, None)\ncallback.on_validation_end(Trainer, None)\n"),
    "hugging-face": (HUGGING_FACE, "callback.on_prediction_step(args, state, control)\ncallback.on_evaluate(args, state, control)\n"
                                   "callback.on_prediction_step(args, state, control)\ncallback.on_predict(args, state, control, metrics={})\n")}


@pytest.mark.parametrize("text, evaluation", AFTER.values(), ids=AFTER)
def test_after_an_evaluation_at_the_end_no_step_is_waited_for(crun, script, text, evaluation):
    rc, _, err = crun.run("--no-log-prefix", script(text + evaluation + "import os\nos.abort()\n"), 12)
    assert rc == 134 and "  progress  step 12, phase closing\n" in err, err


@pytest.mark.parametrize("text", [LIGHTNING, HUGGING_FACE], ids=["lightning", "hugging-face"])
def test_without_crun(alone, script, text):
    p = run(sys.executable, script(text), 12, env=alone)
    assert (p.returncode, p.stdout, p.stderr) == (0, "up\nend\n", "")


def test_lightning_saves_and_ends_with_75_when_crun_asks(crun, script):
    p = crun.start("--no-log-prefix", "--drain-timeout", 300, script(LIGHTNING), 1000000)
    assert p.stdout.readline() == b"up\n"
    p.send_signal(signal.SIGTERM)
    out, err = p.communicate(timeout=60)
    assert (p.returncode, out) == (75, b""), err
    assert int((crun.tmp / "resume.ckpt").read_text()) > 5


def test_hugging_face_saves_and_ends_with_75_when_crun_asks(crun, script):
    p = crun.start("--no-log-prefix", "--drain-timeout", 300, script(HUGGING_FACE), 1000000)
    assert p.stdout.readline() == b"up\n"
    p.send_signal(signal.SIGTERM)
    out, err = p.communicate(timeout=60)
    assert (p.returncode, out) == (75, b"saved\n"), err


def test_loss_and_rate_are_on_the_status_page(crun, script):
    """crun that hosts answers `crun status`: its numbers are rank 0's."""
    port = crun.port()
    p = crun.start("--no-log-prefix", "--nnodes", "1:2", "--max-restarts", 1, "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "j", "--rdzv-conf",
                   "is_host=1,last_call_timeout=1ms", script(LIGHTNING), 1000000)
    assert p.stdout.readline() == b"up\n"
    seen = []

    def shown():
        seen[:] = [run(CRUN, "status", "--rdzv-endpoint", f"127.0.0.1:{port}", env=crun.env)]
        return "0.25" in seen[0].stdout
    try:
        wait("the loss in crun status", shown)
    except AssertionError:
        raise AssertionError(seen[0].stdout + seen[0].stderr) from None
    p.kill()
    p.communicate(timeout=60)
    crun.wait_processes_gone(60)
