"""The commands of every page do what the page shows; README and docs/ keep their form: lines, links, sizes."""
import os
import re

import pytest

from pages import ROOT, blocks, pages, run_page

RUN = [p for p in pages() if any(b.run for b in blocks(p.read_text()))]
NAMES = [str(p.relative_to(ROOT)) for p in RUN]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=NAMES)
def test_the_commands_of_a_page_do_what_it_shows(page, tmp_path):
    fault = run_page(page.read_text(), tmp_path)
    assert fault is None, fault


@pytest.mark.parametrize("commands, fault", [
    ("$ echo a; echo b1\nb…\na\n$ false\n$ echo $?\n1", None), ("$ echo a b\na c", "not in the output: a c"), ("$ false", "exit code 1"),
    ("$ echo x; echo y\ny", "not on the page: x"), ("$ echo x; echo y\ny\n...", None),
    ("$ echo ab; echo ax\na…\nab", None), ("$ echo ab; echo ab\na…\nac", "not in the output: ac"), ("$ echo \\\n  x\nx", None)])
def test_a_page_that_is_wrong_is_seen(commands, fault, tmp_path):
    found = run_page(f"```console run\n{commands}\n```\n", tmp_path)
    assert (found and found.split(": ", 1)[1].split("\n")[0]) == fault


def test_every_block_of_commands_is_run_or_says_what_it_needs():
    for page in pages():
        for block in blocks(page.read_text()):
            if block.language == "console":
                assert block.run != bool(block.needs), f"{page}: {block.text}"


def crooked(text):
    """The first line of each block that is not indented as a whole, which a reader would not see as a block."""
    found = re.finditer(r"^( *)(```\w*[^\n]*)\n(.*?)^( *)```$", text, re.M | re.S)
    return [m[2] for m in found if m[4] != m[1] or any(line and not line.startswith(m[1]) for line in m[3].split("\n"))]


def test_blocks_are_indented_as_a_whole():
    assert crooked("   ```sh\n   a\n\n   b\n   ```\n```c\n  a\n```\n") == []
    assert crooked("    ```sh\na\n```\n") == crooked("  ```sh\na\n  ```\n") == ["```sh"]
    assert not (wrong := {str(page): lines for page in pages() if (lines := crooked(page.read_text()))}), wrong


def test_lines_and_pages_have_an_end():
    """A page has at most 400 lines, a line 120 columns; README.md has fewer than 120 lines."""
    for page in pages():
        lines = page.read_text().splitlines()
        assert len(lines) <= 400, f"{page}: {len(lines)} lines"
        long = [f"{page}:{n}" for n, line in enumerate(lines, 1) if len(line) > 120]
        assert not long, long
    assert len((ROOT / "README.md").read_text().splitlines()) < 120


def anchors(text):
    """Of headings, as GitHub names them."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    heads = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", h) for h in re.findall(r"^#+ (.*)$", text, re.M)]
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads}


def test_no_link_is_dead():
    dead = []
    for page in [*pages(), ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"]:
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            path, _, anchor = link.partition("#")
            if "://" in link:
                continue
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target.read_text())):
                dead.append(f"{page.relative_to(ROOT)}: {link}")
    assert not dead, dead


def test_files_that_pages_name_exist():
    """NAME in capitals stands for several."""
    named, rooms = set(), "common|launcher|rendezvousd|worker|tests|python|packaging"
    for page in [*pages(), ROOT / "CONTRIBUTING.md"]:
        named |= {n for n in re.findall(rf"(?<![\w/.$~{{}}<>-])((?:{rooms})/[\w./-]*\w)", page.read_text()) if not re.search("[A-Z]{4}", n)}
    assert len(named) > 50 and not (missing := {n for n in named if not any(ROOT.glob(f"{n}*"))}), missing


def asserts_of_sources():
    """{name of a file: number of its assertions}"""
    found = {}
    for path in (p for room in ("common", "launcher", "rendezvousd", "worker") for p in (ROOT / room).rglob("*") if p.suffix in (".c", ".h", ".cc", ".cu", ".cuh")):
        code = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.S)
        if n := len(re.findall(r"(?<![\w.>])assert\(", code)):
            found[path.name] = n
    return found


def asserts_of_page(text):
    rows = [line.split("|")[1].partition(":")[0] for line in text.splitlines() if re.match(r"\| \w+\.\w+[ ,:]", line)]
    return {name: int(n or 1) for row in rows for name, n in re.findall(r"(\w+\.\w+)(?: \((\d+)\))?", row)}


def test_every_assertion_is_on_its_page():
    assert asserts_of_page("| a.c: x | y | z |\n| b.c (2), c.cu: x | y.c | z |") == {"a.c": 1, "b.c": 2, "c.cu": 1}
    assert asserts_of_page((ROOT / "docs/design/assertions.md").read_text()) == asserts_of_sources()


def test_options_that_pages_name_exist():
    """In the tables of what the programs read and write, on docs/design/security.md."""
    known = set(re.findall(r"--[a-z][\w-]+", "".join(p.read_text() for p in (ROOT / "docs/reference").glob("options*.md")).replace("[no-]", "")))
    rows = [line for line in (ROOT / "docs/design/security.md").read_text().splitlines() if line.startswith("| ")]
    named = set(re.findall(r"`(?:\w+ [\w-]* ?)?(--[a-z][\w-]+)", "\n".join(rows)))
    assert len(named) > 10 and not named - known, named - known


def test_what_is_typed_with_a_path_can_be_executed():
    """`./NAME` of a page, where the tree has that file: at its top, or beside the page."""
    seen, barred = set(), set()
    for page in [*pages(), ROOT / "CONTRIBUTING.md"]:
        for name in re.findall(r"(?<![\w/.])\./(\w[\w./-]*)", page.read_text()):
            for file in (ROOT / name, page.parent / name):
                if file.is_file():
                    seen.add(file)
                    if not os.access(file, os.X_OK):
                        barred.add(str(file.relative_to(ROOT)))
    assert ROOT / "dev" in seen and not barred, barred


def test_every_page_is_reached_from_the_readme():
    seen, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        seen.add(page)
        for link in re.findall(r"\]\(([^)\s#]+\.md)", page.read_text()):
            target = (page.parent / link).resolve()
            if target.exists() and target not in seen and ROOT in target.parents:
                todo.append(target)
    decisions = {p for p in pages() if p.parent.name == "decisions"}
    assert not set(pages()) - seen - decisions
