# SPDX-License-Identifier: Apache-2.0
"""The launcher for Spack. Its tool is neither in PyPI nor in Debian: nobody has checked this file.

    spack repo create ~/crun-repo && mkdir ~/crun-repo/packages/crun-launcher
    cp packaging/spack/package.py ~/crun-repo/packages/crun-launcher/ && spack repo add ~/crun-repo
    spack dev-build --source-path . crun-launcher@0.1.0
"""
from spack.package import *


class CrunLauncher(MesonPackage):
    """A drop-in for torchrun, in C: starts the processes of a distributed training job, on one machine or many. Not the container runtime crun."""

    license("Apache-2.0")

    version("0.1.0")

    variant("http", default=True, description="Health, metrics and status page of rendezvousd")
    variant("hwloc", default=True, description="Binding to cores and NUMA nodes, crun topo")
    variant("curl", default=True, description="An etcd or the Kubernetes API as rendezvous")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("meson@1.0:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("uthash", type="build")
    depends_on("libuv@1.40:")
    depends_on("hiredis@0.14:")
    depends_on("cjson")
    depends_on("openssl@3:")
    depends_on("libmicrohttpd@0.9.71:", when="+http")
    depends_on("hwloc@2.0:2", when="+hwloc")
    depends_on("curl@7.68:", when="+curl")

    conflicts("platform=darwin", msg="crun-launcher needs Linux 5.3 or newer")
    conflicts("platform=windows", msg="crun-launcher needs Linux 5.3 or newer")

    def meson_args(self):
        features = {name: "enabled" if self.spec.satisfies(f"+{name}") else "disabled" for name in ("http", "hwloc", "curl")}
        return ["-Dtrainer=disabled", "-Dtests=disabled", *(f"-D{name}={value}" for name, value in features.items())]

    def setup_run_environment(self, env):
        env.prepend_path("PYTHONPATH", self.prefix.lib.python3.join("dist-packages"))

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_install(self):
        Executable(self.prefix.bin.crun)("--standalone", "--nproc-per-node", "2", "true")
