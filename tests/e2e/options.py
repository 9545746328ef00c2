"""docs/reference/options*.md: what the programs say about their own options. `options.py BUILD FOLDER` writes them."""
import pathlib
import re
import subprocess
import sys
import textwrap

TRAINER = "worker/trainer"
PAGES = {  # name of the page: title, [(program as it is typed, [what prints its options])]
    "crun": ("Options of crun", [("crun", ["launcher/crun"])]),
    "crun-commands": ("Options of crun's commands", [(f"crun {c}", ["launcher/crun", c]) for c in ("status", "stacks", "logs", "drain", "stop", "admin", "doctor", "chaos")]),
    "rendezvousd": ("Options of rendezvousd", [("rendezvousd", ["rendezvousd/rendezvousd"])]),
    "trainer": ("Options of trainer", [("trainer", [TRAINER, "train"])]),
    "other-trainers": ("Options of trainer caffe2, imagenet and mnist", [(f"trainer {c}", [TRAINER, c]) for c in ("caffe2", "imagenet", "mnist")]),
    "trainer-tools": ("Options of trainer's tools", [(f"trainer {c}", [TRAINER, c]) for c in (
        "make-data", "make-db", "predict", "generate", "convert", "plan", "summary", "plot", "comm-bench", "comm-test", "gpu-info", "gpu-doctor", "demo")]),
}
PREFIX = {"crun": "CRUN_", "rendezvousd": "RENDEZVOUSD_"}  # of each option's environment variable


def cells(row):
    return [c.strip().replace("\\|", "|") for c in re.split(r"(?<!\\)\|", row)[1:-1]]


def entry(name, environment, default, meaning, prefix):
    """A row of a program's table as an item of a list. The variable that follows from an option's name goes without saying."""
    first = re.search(r"--(?:\[no-\])?([\w-]+)", name)
    own = f"`{prefix}{first[1].replace('-', '_').upper()}`" if prefix and first else None
    notes = [f"also {', '.join(more)}"] if (more := [v for v in environment.split(", ") if v and v != own]) else []
    notes += [f"default {default}"] if default not in ("", "required") else [default] if default else []
    text = f"{name}{f' ({chr(59).join(notes)})' if notes else ''}: {meaning}".replace(";also", "; also").replace(";default", "; default")
    glued = re.sub(r"`[^`]+`", lambda m: m[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(glued, 118, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")


def options(build, program, command):
    p = subprocess.run([f"{build}/{command[0]}", *command[1:], "--options-markdown"], capture_output=True, text=True, check=True, timeout=20)
    out = []
    for line in p.stdout.splitlines():
        if line.startswith("| `"):
            out.append(entry(*cells(line), PREFIX.get(program)))
        elif line.startswith("#") or (line and not line.startswith("|")):
            out += [line, ""] if line.startswith("#") else [*textwrap.wrap(line, 118), ""]
        elif not line and out and out[-1]:
            out.append("")
    return "\n".join(out).strip() + "\n"


def index():
    text = ["# Options", "", "Written by `./dev docs` from the programs' option tables. `PROGRAM --help` prints the same; `--print-config` prints each",
            "value and where it comes from.", "", "| page | of |", "|---|---|"]
    for name, (_, programs) in PAGES.items():
        words = [f"`{p.split()[-1] if n else p}`" for n, (p, _) in enumerate(programs)]
        if name != "trainer-tools":
            text.append(f"| [options-{name}.md](options-{name}.md) | {', '.join(words[:5])}{' and the like' if words[5:] else ''} |")
    text += ["| [options-trainer-tools.md](options-trainer-tools.md) | `trainer make-data`, `predict`, `plan` and the like |"]
    return "\n".join(text) + "\n"


def pages(build):
    """{file name: text}"""
    found = {"options.md": index()}
    for page, (title, programs) in PAGES.items():
        out = [f"# {title}\n", "Written by `./dev docs` from the program's option table.\n"]
        if page in PREFIX:
            out.append(f"Each option has a variable: `--NAME` is `{PREFIX[page]}NAME`, with `_` for `-`. The lists name others only.\n")
        for name, command in programs:
            out += ([f"## {name}\n"] if len(programs) > 1 else []) + [options(build, name, command).replace("### ", "### " if len(programs) > 1 else "## ")]
        found[f"options-{page}.md"] = "\n".join(out)
    return found


if __name__ == "__main__":
    for file, text in pages(sys.argv[1]).items():
        (pathlib.Path(sys.argv[2]) / file).write_text(text)
