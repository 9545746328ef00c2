"""docs/options.md: what the programs say about their own options. `options.py BUILD` prints it."""
import subprocess
import sys

TRAINER = ["train", "caffe2", "imagenet", "mnist", "make-data", "make-db", "predict", "plan", "plot", "comm-bench", "comm-test", "gpu-info", "gpu-doctor", "demo"]
PROGRAMS = [("crun", ["launcher/crun"]), ("crun status", ["launcher/crun", "status"]), ("crun doctor", ["launcher/crun", "doctor"]), ("crun chaos", ["launcher/crun", "chaos"]),
            *[(f"trainer {c}".removesuffix(" train"), ["worker/trainer", c]) for c in TRAINER], ("rendezvousd", ["rendezvousd/rendezvousd"])]


def text(build):
    out = ["# Options\n", "Written by `./dev docs` from the programs' option tables.\n"]
    for name, (program, *args) in PROGRAMS:
        p = subprocess.run([f"{build}/{program}", *args, "--options-markdown"], capture_output=True, text=True, check=True,
                           timeout=20)
        out += [f"## {name}\n", p.stdout]
    return "\n".join(out)


if __name__ == "__main__":
    print(text(sys.argv[1]), end="")
