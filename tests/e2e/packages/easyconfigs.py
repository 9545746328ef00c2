"""EasyBuild's own view of easyconfigs, run by a Python that has it. usage: easyconfigs.py FOLDER THEIRS

One line of JSON for each .eb of FOLDER: its name, version, easyblock, the options that it gives Meson, and the dependencies that neither FOLDER nor
THEIRS, the recipes of EasyBuild, has."""
import json
import pathlib
import sys

from easybuild.framework.easyconfig import easyconfig
from easybuild.tools.modules import NoModulesTool
from easybuild.tools.options import set_up_configuration

set_up_configuration(args=[f"--robot-paths={sys.argv[1]}:{sys.argv[2]}", "--allow-use-as-root-and-accept-consequences"], silent=True)
easyconfig.modules_tool = lambda *_, **__: NoModulesTool()  # nothing is loaded


def is_there(needed):
    chain = needed["toolchain"]
    version = needed["version"] + ("" if chain["name"] == "system" else f"-{chain['name']}-{chain['version']}") + (needed.get("versionsuffix") or "")
    return easyconfig.robot_find_easyconfig(needed["name"], version)


for path in sorted(pathlib.Path(sys.argv[1]).glob("*.eb")):
    made = easyconfig.EasyConfig(str(path))  # it validates
    missing = [needed["name"] for needed in made.dependencies() if not is_there(needed)]
    block = easyconfig.get_easyblock_class(made["easyblock"]).__name__
    print(json.dumps({"name": made.name, "version": made.version, "easyblock": block, "configopts": made["configopts"], "missing": missing}))
