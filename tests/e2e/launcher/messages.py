"""What the three programs may say when something is wrong: the format strings of their sources, as messages."""
import pathlib
import re

from crun_run import REPO

ROOMS = ("common", "launcher", "rendezvousd", "worker")
# What makes or prints a message; test_explain.py looks for others. Not here: the findings of crun doctor, which has a remedy beside each, and what
# is written at level info or debug.
MAKERS = ("err_set|err_errno|log_warn|log_error|logmux_print|fprintf|printable_line|builder_fail|net_fail|damaged_fail|cut_fail|machine_bad|client_give_up_|client_fail_|client_fence_|client_turn_away_|client_text_|tcp_trouble|gate_refused|complain|say|warn|tell|"
          "lose|remote_print_line|fail|die|console_try|reply_error|personality_warn|streams_print|http_refuse|protocol_error|header|corrupt|"
         "give_up_unbegun|lose_malformed|opened|write_note|err_start|usage_error|ssl_error|file_error|jpeg_errors_raise|png_error|journal_say|fputs|"
         "GlooError|GLOO_THROW|GLOO_THROW_INVALID_OPERATION_EXCEPTION")
ERRNO = {"err_errno", "err_start", "ssl_error", "file_error"}  # these add what the system, or OpenSSL, says
# Progress and results of trainer, which the same function prints as its warnings.
RESULTS = {"epoch %lld: train loss %.4f Acc@1 %.2f, test loss %.4f Acc@1 %.2f (%lld images)", "speed: %.1f %s/s over %lld steps without warm-up%s",
           "memory in MiB, planned and held (begin: before the run opened anything; the others: above that)", "sent by a rank in a step, in MiB", "--mem-report, %s:",
           ", of made-up data", "epoch %lld: train loss %.4f, test loss %.4f perplexity %.3f Acc@1 %.2f (%lld tokens)", "%s %lld (epoch %lld, step %lld of %lld)", "saved: %s/step-%08lld%s", "%s%zu of %zu pictures%s", "evaluates the model of step %lld", "Test: loss %.4f Acc@1 %.3f Acc@5 %.3f (%lld %s)"}
# Where snprintf() makes a sentence that is printed elsewhere: as the cause of an end, or of a wait. What begins with a comma or the like,
# is one word, or is in PARTS goes into such a sentence.
SENTENCES = {"common/rdzv/leader/leader.c", "common/rdzv/machine/rdzv.c", "launcher/agent/machine/farewell.c", "launcher/agent/member_news.c",
             "launcher/stdio/console_file.c", "launcher/guard/stuck.c", "launcher/hang/hang.c", "launcher/hang/hang_quiet.c",
             "launcher/witness/ras_judge.c", "launcher/witness/flight.c", "launcher/output/process/event_file.c",
             "launcher/output/process/file_thread.c", "launcher/observe/timeline.c", "launcher/hang/quiet.c",
             "launcher/output/log_console.c", "launcher/report/failure_report.c", "rendezvousd/history/history.c", "launcher/rendezvous/rdzv_client_elected.c", "launcher/straggler/straggler.c", "worker/data/sets/shapes_main.c",
             "worker/run/guard.c"}
PARTS = {"rank%s %s wait%s in %s", "before its first step", "at step %u64", "in %s after step %u64", "agent (pid %d, state %c%s%s%s%s)",
         "weights were others before the update of step %lld", "%s were others after step %lld"}
CALL = re.compile(rf"\b({MAKERS}|snprintf)\(")
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
LITERALS = re.compile(r'(?:"(?:[^"\\]|\\.)*"\s*)+')
CHOICE = re.compile(r'\?\s*"((?:[^"\\]|\\.)*)"\s*:\s*"((?:[^"\\]|\\.)*)"')
FIELD = re.compile(r"%%|%[-+0-9.*]*(?:l|ll|z|h|t|j)*[a-zA-Z]")


def arguments(text, at):
    """Of the call whose '(' ends before `at`."""
    depth, begin = 1, at
    while depth:
        if m := STRING.match(text, at) or re.compile(r"'(?:\\.|[^'])'").match(text, at):
            at = m.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return text[begin:at - 1]


def whole(text):
    return text not in PARTS and text[0] not in ",;(" and len(re.findall("[a-z]{2,}", FIELD.sub("7", text))) > 1


def sources():
    for room in ROOMS:
        for path in sorted(pathlib.Path(REPO, room).rglob("*.c*")):
            if path.suffix in (".c", ".cc"):
                yield path


def formats():
    """(file, function, format string)"""
    for path in sources():
        text = re.sub(r"PRI(\w+)", r'"\1"', path.read_text())
        for call in CALL.finditer(text):
            args = arguments(text, call.end())
            if call[1] in ("fprintf", "printable_line") and (not args.startswith("stderr") or path.parent.name == "session") or call[1] == "fputs" and not args.endswith(", stderr"):
                continue  # to files; the banner of a run
            strings = ["".join(STRING.findall(s)).replace('\\"', '"').replace("\\n", "") for s in LITERALS.findall(args)]
            found = [s for s in strings if " " in s.strip() and re.search("[a-z]{3}", s)]
            if call[1] == "snprintf" and (str(path.relative_to(REPO)) not in SENTENCES or found and not whole(found[0])):
                continue
            found = [s for s in found if s not in RESULTS]
            if found and not found[0].startswith(("\\r", " ", "Try ", "'")) and not (call[1] == "fprintf" and re.match(r"%\w+ of %", found[0])):
                yield path, call[1], found[0]
                for first, other in CHOICE.findall(args):  # a whole sentence each
                    if first == found[0] and " " in other and whole(other.strip()):
                        yield path, call[1], other


def messages():
    """{as a program may print it: where it is made}. What ends with the words of another message, or of the system, gets the system's."""
    found = {}
    for path, maker, text in formats():
        message = FIELD.sub("7", re.sub(r": %s$", ": Input/output error", text))
        if maker in ERRNO:
            message += ": Input/output error"
        if re.search("[a-z]{3}", re.sub(r"^(crun|trainer|rendezvousd)( [a-z-]+)?: ", "", message)):
            found.setdefault(message, f"{path.relative_to(REPO)}: {text}")
    return found


TOKEN = re.compile(r"""R"\w*\(.*?\)\w*"|/\*.*?\*/|//[^\n]*|'(?:\\.|[^'\\\n])+'|(?P<string>"(?:[^"\\\n]|\\.)*")|(?P<call>(?<!\w)[A-Za-z_]\w*(?=\())?(?P<begin>\()|(?P<end>\))""", re.S)
SENTENCE = re.compile(r"(?:(?:^|(?<= ))[a-z]{2,}[,.:;]?(?: +|$)[^a-z]*){4}")


def callers(texts=None):
    """{function or macro that is called with a sentence: the first of them}"""
    found = {}
    for text in texts or (path.read_text() for path in sources()):
        inside = []
        for token in TOKEN.finditer(text):
            if token["begin"]:
                inside.append(token["call"] or (inside[-1] if inside else ""))
            elif token["end"] and inside:
                inside.pop()
            elif token["string"] and inside and SENTENCE.search(token["string"][1:-1]):
                found.setdefault(inside[-1], token["string"])
    return found
