"""The files for Spack, EasyBuild, conda and Nix: what they name is what the tree has; each read by its own tool, where PyPI or Debian has that; and no
page tells people to install from where nothing is published."""
import json
import re
import shutil
import subprocess
import sys
import types

import pytest
import yaml

from support import ROOT, run

PACKAGING = ROOT / "packaging"
EASYBUILD = next((PACKAGING / "easybuild").glob("crun-launcher-*.eb"))
FILES = {"spack": PACKAGING / "spack/package.py", "easybuild": EASYBUILD, "conda": PACKAGING / "conda/recipe.yaml", "nix": PACKAGING / "nix/flake.nix"}
OPENED = {"microhttpd": "http", "hwloc": "hwloc", "curl": "curl"}  # on first use: what may be left out, and the option that says so


@pytest.mark.parametrize("channel", FILES)
def test_version_and_options_are_those_of_the_tree(channel):
    version = re.search(r"^  version: '(\d+\.\d+\.\d+)',$", (ROOT / "meson.build").read_text(), re.M)[1]
    text = FILES[channel].read_text()
    assert re.search(rf"version\W+{re.escape(version)}\b", text)
    known = set(re.findall(r"^option\('(\w+)'", (ROOT / "meson_options.txt").read_text(), re.M))
    given = set(re.findall(r"-D([a-z]\w*)=", text))
    assert {"trainer"} <= given <= known


@pytest.mark.parametrize("channel", FILES)
def test_each_library_of_the_launcher_is_named(channel):
    text = FILES[channel].read_text()
    for library in ("libuv", "hiredis", "cjson", "uthash", "openssl", *OPENED):
        assert re.search(library, text, re.I) or f"-D{OPENED[library]}=disabled" in text, library


class Spec:
    def satisfies(self, variant):
        return variant != "+hwloc"


def test_spacks_class_gives_meson_its_variants():
    """As far as Python alone can tell: Spack's own words do nothing here."""
    words = {name: lambda *_, **__: None for name in ("license", "version", "variant", "depends_on", "conflicts")}
    stand_in = types.ModuleType("spack.package")
    stand_in.__dict__.update(words, MesonPackage=object, run_after=lambda _: lambda f: f, on_package_attributes=lambda **_: lambda f: f)
    sys.modules.update({"spack": types.ModuleType("spack"), "spack.package": stand_in})
    try:
        names = {}
        exec(compile(FILES["spack"].read_text(), "package.py", "exec"), names)
    finally:
        del sys.modules["spack"], sys.modules["spack.package"]
    package = names["CrunLauncher"]()
    package.spec = Spec()
    assert package.meson_args() == ["-Dtrainer=disabled", "-Dtests=disabled", "-Dhttp=enabled", "-Dhwloc=disabled", "-Dcurl=enabled"]


PUBLISHED_NOWHERE = re.compile(r"""(pip|pipx|uv)[ ](tool[ ])?(install|run|add)[^\n`#]*(?<!/)\bcrun([-_]launcher)?(?![-_\w/]*\.whl)\b
    |apt(-get)?[ ]install[^\n`#]*(?<![./\w])(crun-launcher|rendezvousd|crun-trainer)\b(?!_)
    |(conda|mamba|micromamba|pixi|brew|spack|dnf|yum|zypper)[ ](install|add|global)[^\n`#]*\bcrun
    |nix[ ](run|shell|profile)[^\n`#]*(nixpkgs|github)|(docker|podman)[ ]pull[^\n`#]*crun|helm[ ](install|repo)[^\n`#]*crun|\beb[ ]crun""", re.X)


@pytest.mark.parametrize("sentence, told", [
    ("pip install crun-launcher", True), ("apt install crun-launcher", True), ("conda install -c conda-forge crun-launcher", True), ("docker pull x/crun", True),
    ("pip install dist/crun_launcher-*.whl", False), ("apt install ./dist/crun-launcher_*.deb ./dist/crun-trainer_*.deb gnuplot-nox", False)])
def test_what_such_a_sentence_is(sentence, told):
    assert bool(PUBLISHED_NOWHERE.search(sentence)) == told


def test_no_page_tells_to_install_from_where_nothing_is_published():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.py"), *PACKAGING.rglob("*.md"), *FILES.values()]
    told = {str(p.relative_to(ROOT)): m[0] for p in pages for m in [PUBLISHED_NOWHERE.search(p.read_text())] if m}
    assert len(pages) > 50 and not told


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    """Python with EasyBuild and rattler-build."""
    venv = tmp_path_factory.mktemp("tools") / "venv"
    if run(sys.executable, "-m", "venv", venv).returncode != 0:
        pytest.skip("no venv module that works")
    p = run(venv / "bin/python", "-m", "pip", "install", "--quiet", "easybuild-framework", "easybuild-easyblocks", "easybuild-easyconfigs", "py-rattler-build", timeout=900)
    if "No matching distribution found" in p.stderr:
        pytest.skip("no network: EasyBuild and rattler-build cannot be downloaded")
    assert p.returncode == 0, p.stderr
    return venv


@pytest.mark.slow
def test_easybuild_takes_its_recipes_and_has_what_they_need(tools):
    p = run(tools / "bin/python", ROOT / "tests/e2e/packages/easyconfigs.py", PACKAGING / "easybuild", tools / "easybuild/easyconfigs", timeout=600)
    found = {r["name"]: r for r in (json.loads(line) for line in p.stdout.splitlines() if line.startswith("{"))}
    assert set(found) == {"crun-launcher", "cJSON"}, p.stderr
    assert [r["missing"] for r in found.values()] == [[], []] and found["crun-launcher"]["easyblock"] == "MesonNinja"


RENDER = """
import json, sys
from rattler_build import Stage0Recipe, VariantConfig
print(json.dumps([v.recipe.to_dict() for v in Stage0Recipe.from_file(sys.argv[1]).render(VariantConfig.from_file(sys.argv[2]))]))
"""


@pytest.mark.slow
def test_rattler_build_renders_the_recipe(tools):
    p = run(tools / "bin/python", "-c", RENDER, FILES["conda"], PACKAGING / "conda/variants.yaml")
    assert p.returncode == 0, p.stderr
    made, = json.loads(p.stdout)
    assert made["package"] == {"name": "crun-launcher", "version": yaml.safe_load(FILES["conda"].read_text())["context"]["version"]}
    assert {"libuv", "hiredis", "cjson", "uthash"} <= set(made["requirements"]["host"])


@pytest.mark.slow
def test_nix_parses_the_flake():
    if not shutil.which("nix-instantiate"):
        pytest.skip("nix-instantiate is not installed")
    p = subprocess.run(["nix-instantiate", "--parse", FILES["nix"]], capture_output=True, text=True, check=False)
    assert p.returncode == 0 and '"aarch64-linux"' in p.stdout, p.stderr
