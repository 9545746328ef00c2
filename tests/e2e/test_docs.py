"""Documentation that is made from the programs is what the programs say."""
import re

import options
from support import BUILD, ROOT


def test_the_pages_on_options_are_up_to_date():
    assert {p.name: p.read_text() for p in (ROOT / "docs/reference").glob("options*.md")} == options.pages(BUILD), "run ./dev docs"


def test_the_picture_types_what_the_pages_type():
    typed = re.findall(r'<text class="typed"[^>]*>([^<]*)<', (ROOT / "docs/pictures/terminal.svg").read_text())
    assert typed[0].startswith("$ crun-launcher --nproc-per-node ") and all(line.startswith("$ ") for line in typed), typed


def test_every_variable_of_a_worker_is_in_the_manual():
    contract = (ROOT / "common" / "job" / "env_contract.h").read_text()
    manual = (ROOT / "docs/reference/environment.md").read_text()
    names = re.findall(r'X\(\w+, "(\w+)"', contract)
    assert len(names) > 20 and [n for n in names if f"`{n}`" not in manual] == []
