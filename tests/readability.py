"""How readable the documentation is: Flesch reading ease of each page, and the median. Not part of ./dev test, for it needs
`pip install textstat==0.7.4` (newer ones need a download of their own). `readability.py [ROOT]`: README.md and docs/ below ROOT.

Prose alone counts: paragraphs and list items. Code blocks, tables and headings are left out, `code` and links' targets are
read as one short word. Pages that programs write, and pages of fewer than 100 words, are left out of the median."""
import pathlib
import re
import statistics
import sys

import textstat

GENERATED = ("Written by `./dev docs`", "Written by `./dev docs`")


def prose(text):
    text = re.sub(r"^(```|~~~).*?^\1[^\n]*$", "", text, flags=re.M | re.S)
    lines = []
    for line in text.split("\n"):
        if re.match(r"\s*\||#|\s*<|( {4}|\t)(?!\s*[-*] )\S", line) and not (lines and lines[-1].strip() and line.startswith("    ")):
            lines.append("")
        elif re.match(r"\s*([-*]|\d+\.) ", line):
            lines += ["", re.sub(r"^\s*([-*]|\d+\.) ", "", line)]
        else:
            lines.append(line.strip())
    paragraphs = re.split(r"\n\s*\n", "\n".join(lines))
    out = []
    for p in paragraphs:
        p = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", p)
        p = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", p)
        p = re.sub(r"`[^`]*`", "it", p)
        p = re.sub(r"https?://\S+|\S+/\S+|\S+\.(md|py|c|h)\b", "it", p)
        p = " ".join(re.sub(r"[*_|]", " ", p).split())
        if len(p.split()) >= 3:
            out.append(p if re.search(r"[.!?:]$", p) else p + ".")
    return " ".join(out)


def main(root):
    scores = {}
    for path in sorted([root / "README.md", *(root / "docs").rglob("*.md")]):
        text = path.read_text()
        words = prose(text)
        if len(words.split()) < 100 or any(g in text for g in GENERATED):
            continue
        scores[path.relative_to(root)] = textstat.flesch_reading_ease(words)
    for path, score in sorted(scores.items(), key=lambda s: s[1]):
        print(f"{score:6.1f}  {path}")
    print(f"{statistics.median(scores.values()):6.1f}  median of {len(scores)} pages")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[1]))
