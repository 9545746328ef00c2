"""Sum up the test runs: `summary.py MESON_JUNIT PYTEST_JUNIT MESON_RC PYTEST_RC`. Exit 1 if anything failed."""
import sys
import xml.etree.ElementTree as ET


def count(path):
    try:
        cases = list(ET.parse(path).getroot().iter("testcase"))
    except (OSError, ET.ParseError) as why:
        print(f"summary: no results in {path}: {why}")
        return 0, 1, 0
    failed = sum(1 for c in cases if c.find("failure") is not None or c.find("error") is not None)
    skipped = [c for c in cases if c.find("skipped") is not None]
    for c in skipped:
        print(f"skipped: {c.get('classname', '')} {c.get('name')}")
    return len(cases) - failed - len(skipped), failed, len(skipped)


def main():
    meson_xml, pytest_xml, meson_rc, pytest_rc = sys.argv[1:]
    totals = [a + b for a, b in zip(count(meson_xml), count(pytest_xml))]
    # A crash between cases leaves a good-looking file behind: the runner's own verdict counts as one failure then.
    if totals[1] == 0 and (int(meson_rc) != 0 or int(pytest_rc) != 0):
        print(f"summary: meson ended with {meson_rc}, pytest with {pytest_rc}")
        totals[1] = 1
    print("%d passed, %d failed, %d skipped" % tuple(totals))
    return 1 if totals[1] else 0


sys.exit(main())
