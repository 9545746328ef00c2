"""Every suite that needs a GPU, each in a process of its own with a deadline.

A SUITE is a part of a name ("ops", "GPU ops fp32", "ranks"). gpu-test.json and gpu-test.html, a page for readers, are written anew after each suite, so that what was
found is there however the run ends; what no longer fits into the budget is named. The last line sums up; the exit status is 1 where something failed."""
import argparse
import concurrent.futures
import contextlib
import html
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
LIMIT = {"sanitizer": 1200, "training": 600, "ranks": 900, "recovery": 600, "recovery_torch": 300, "ras": 900}  # seconds of a pytest file; others 200
LAST = ["training", "ranks", "recovery", "recovery_torch", "ras", "sanitizer"]  # after everything quick
TURNS = {"ranks", "recovery", "recovery_torch", "ras"}  # their ranks share the card, whose processes wait for each other spinning: one suite at a time
SHOWN = 60  # lines of a suite that failed
START = time.monotonic()


def arguments():
    p = argparse.ArgumentParser("./dev gpu-test", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", type=pathlib.Path, required=True, help=argparse.SUPPRESS)  # ./dev gives these two
    p.add_argument("--out", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    p.add_argument("--budget", type=float, default=3600, help="seconds for all (3600)")
    p.add_argument("--jobs", type=int, default=max(1, min(8, len(os.sched_getaffinity(0)) // 2)),
                   help="suites side by side (half the cores, 8 at most): they share the card, so figures that they print are of a busy one")
    p.add_argument("--python", type=pathlib.Path, default=HERE, help="folder of the pytest files (for tests)")
    p.add_argument("suites", nargs="*", metavar="SUITE")
    options = p.parse_args()
    if options.budget <= 0:
        p.error(f"--budget {options.budget:g} (expected seconds above 0)")
    if options.jobs < 1:
        p.error(f"--jobs {options.jobs} (expected at least 1)")
    return options


def programs(build):
    """(name, command, environment, limit) of meson's suite `gpu`."""
    listed = subprocess.run(["meson", "introspect", "--tests", str(build)], stdout=subprocess.PIPE, text=True, check=True).stdout
    for t in json.loads(listed):
        if any(s.split(":")[-1] == "gpu" for s in t["suite"]):
            yield t["name"], t["cmd"], t["env"], t["timeout"]


def files(options):
    """The same of the pytest files."""
    for f in options.python.glob("test_*.py"):
        name = re.sub("^test_(gpu_)?", "", f.stem)
        yield name, [sys.executable, "-m", "pytest", "-q", "-ra", "-s", "-p", "no:cacheprovider", str(f)], {}, LIMIT.get(name, 200)


def wanted(options):
    every = sorted([*programs(options.build), *files(options)], key=lambda s: (LAST.index(s[0]) if s[0] in LAST else -1))
    for word in options.suites:
        if not any(word in s[0] for s in every):
            raise SystemExit(f"gpu-test: '{word}' is part of no suite's name: {', '.join(s[0] for s in every)}")
    return [s for s in every if not options.suites or any(word in s[0] for word in options.suites)]


def run(command, env, seconds):
    """(output, exit status or None when it was out of time)"""
    p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=dict(os.environ, **env), start_new_session=True)
    try:
        return p.communicate(timeout=seconds)[0], p.returncode
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL)
        return p.communicate()[0], None


def count_tap(text):
    """{"passed": [names], ...} of what a program printed."""
    found = {"passed": [], "failed": [], "skipped": re.findall(r"^1\.\.0 # SKIP (.*)", text, re.M)}
    for bad, name in re.findall(r"^(not )?ok \d+ ?-? ?(.*)", text, re.M):
        found["skipped" if "# SKIP" in name else "failed" if bad else "passed"].append(name)
    return found


def count_pytest(path):
    """From the lines that conftest.py appends, one a test and one a figure."""
    found = {"passed": [], "failed": [], "skipped": [], "figures": {}, "texts": []}
    for line in path.read_text().splitlines() if path.exists() else []:
        t = json.loads(line)
        if "figure" in t:
            found["figures"][t["figure"]] = t["value"]
        else:
            found[t["outcome"]].append(t["name"] + (f": {t['why']}" if t["why"] else ""))
            found["texts"] += [t["text"]] if t.get("text") else []
    path.unlink(missing_ok=True)
    return found


def one(options, name, command, env, limit):
    began = time.monotonic()
    seconds = min(limit, options.budget - (began - START))
    lines = options.out / f"tests-{name.replace(' ', '-')}.jsonl"
    lines.unlink(missing_ok=True)
    text, status = run(command, dict(env, CRUN_GPU_LINES=str(lines)), seconds)
    found = count_pytest(lines) if "pytest" in command else count_tap(text)
    texts = found.pop("texts", [])
    if status is None:
        text += "\n".join(texts)  # pytest had no time left for them
        found["failed"].append(f"{name}: no end within {seconds:.0f} s")
    elif status not in (0, 5) and not found["failed"]:  # a crash between cases; 5: pytest had no case
        found["failed"].append(f"{name}: exit status {status}")
    elif not (found["passed"] or found["failed"] or found["skipped"]):
        found["failed"].append(f"{name}: no case ran")
    tells = found["failed"] or ("pytest" in command and found["passed"])  # the latter print figures
    return dict(found, suite=name, seconds=round(time.monotonic() - began, 1), output=text[-20000:] if tells else "")


def show(r):
    print(f"{r['suite']:24} {len(r['passed']):4} passed {len(r['failed']):4} failed {len(r['skipped']):4} skipped {r['seconds']:7.1f} s", flush=True)
    for line in r["output"].splitlines()[-SHOWN:]:
        print(f"    | {line}")
    for why in sorted(set(r["skipped"])):
        print(f"    skipped: {why}")
    for why in r["failed"]:
        print(f"    FAILED: {why}", flush=True)


STYLE = "body{font:15px sans-serif;margin:2em auto;max-width:60em}td,th{text-align:left;padding:.2em 1em .2em 0}.failed{color:#b00020}pre{overflow:auto;background:#f4f4f4}"


def page(results, build):
    """All of it on one page, what failed first."""
    text = lambda x: html.escape(str(x))
    rows = "".join(f"<tr class={'failed' if r['failed'] else 'passed'}><td>{text(r['suite'])}<td>{len(r['passed'])}<td>{len(r['failed'])}<td>{len(r['skipped'])}<td>{r['seconds']}"
                   for r in sorted(results["suites"], key=lambda r: not r["failed"]))
    failed = "".join(f"<h3>{text(r['suite'])}</h3><ul>{''.join(f'<li>{text(f)}' for f in r['failed'])}</ul><pre>{text(r['output'][-6000:])}</pre>"
                     for r in results["suites"] if r["failed"])
    figures = "".join(f"<tr><td>{text(k)}<td>{text(json.dumps(v))[:400]}" for r in results["suites"] for k, v in r.get("figures", {}).items())
    skipped = "".join(f"<li>{text(s)}" for s in sorted({s for r in results["suites"] for s in r["skipped"]}))
    left = f"<p>left out for lack of time: {text(', '.join(results['left_out']))}" if results["left_out"] else ""
    return (f"<!doctype html><meta charset=utf-8><title>gpu-test {results['date']}</title><style>{STYLE}</style><h1>gpu-test, {results['date']}</h1><p>{text(build)}{left}"
            f"<table><tr><th>suite<th>passed<th>failed<th>skipped<th>s{rows}</table>"
            + (f"<h2 class=failed>Failed</h2>{failed}" if failed else "") + (f"<h2>Figures</h2><table>{figures}</table>" if figures else "")
            + (f"<h2>Skipped</h2><ul>{skipped}</ul>" if skipped else "") + "\n")


def save(options, results):
    for name, text in ("gpu-test.json", json.dumps(results, indent=1) + "\n"), ("gpu-test.html", page(results, options.build)):
        part = options.out / "gpu-test.part"
        part.write_text(text)
        part.replace(options.out / name)


def in_time(pool, options):
    """(name, result), as suites end; None: there was no time left to begin it."""
    turn = threading.Lock()

    def attempt(suite):
        with turn if suite[0] in TURNS else contextlib.nullcontext():
            return one(options, *suite) if options.budget - (time.monotonic() - START) >= 5 else None

    suites = {pool.submit(attempt, suite): suite[0] for suite in wanted(options)}
    for ended in concurrent.futures.as_completed(suites):
        yield suites[ended], ended.result()


def main():
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    results = {"date": time.strftime("%Y-%m-%d"), "suites": [], "left_out": []}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for suite, found in in_time(pool, options):
            if found:
                results["suites"].append(found)
                show(found)
            else:
                results["left_out"].append(suite)
            save(options, results)
    totals = [sum(len(r[k]) for r in results["suites"]) for k in ("passed", "failed", "skipped")]
    if results["left_out"]:
        print(f"left out for lack of time: {', '.join(results['left_out'])}")
    print("%d passed, %d failed, %d skipped" % tuple(totals))
    return 1 if totals[1] else 0


sys.exit(main())
