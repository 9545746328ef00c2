"""Documentation that is made from the programs is what the programs say."""
import options
from support import BUILD, ROOT


def test_the_options_page_is_up_to_date():
    assert (ROOT / "docs" / "options.md").read_text() == options.text(BUILD), "run ./dev docs"
