"""docs/options.md: what the programs say about their own options. `options.py BUILD` prints it."""
import subprocess
import sys

PROGRAMS = [("crun", ["launcher/crun"]), ("crun status", ["launcher/crun", "status"]), ("trainer", ["worker/trainer"]), ("trainer caffe2", ["worker/trainer", "caffe2"]),
            ("trainer imagenet", ["worker/trainer", "imagenet"]), ("trainer mnist", ["worker/trainer", "mnist"]), ("trainer make-data", ["worker/trainer", "make-data"]),
            ("trainer plot", ["worker/trainer", "plot"]), ("rendezvousd", ["rendezvousd/rendezvousd"])]


def text(build):
    out = ["# Options\n", "Written by `./dev docs` from the programs' option tables.\n"]
    for name, (program, *args) in PROGRAMS:
        p = subprocess.run([f"{build}/{program}", *args, "--options-markdown"], capture_output=True, text=True, check=True,
                           timeout=20)
        out += [f"## {name}\n", p.stdout]
    return "\n".join(out)


if __name__ == "__main__":
    print(text(sys.argv[1]), end="")
