"""What the kernels became: machine code for each architecture, looked at with cuobjdump and nvdisasm (CUDA's, or those of pip's nvidia-cuda-cuobjdump and
nvidia-cuda-nvdisasm). A kernel that works on vectors moves 128 bits at a time, keeps everything in registers, few enough for two blocks of 256 threads on a
multiprocessor, and divides no integer in such a loop: a divider (kern.cuh) multiplies. Max pooling by itself is not among them: it divides, and a training
step in halves has it within the batch norm before it.

usage: sass.py OBJECT..."""
import os
import re
import shutil
import subprocess
import sys

ARCHS = {"80", "90", "100"}
REGISTERS = 128  # 65,536 of a multiprocessor, two blocks of 256 threads
# Templates over <type, vector width, ...>: widths as mangled. What works on one element at a time is for odd shapes.
VECTOR = re.compile(r"_Z\d+(eltwise|apply_nhwc|apply_nchw|bwd_apply_nhwc|bwd_apply_nchw|sums_nhwc|sums_nchw|bn_mean|bn_pool|bn_pool_sums|bn_pool_apply|input_nhwc)I"
                    r"(f|6__half|13__nv_bfloat16)Li(4|8)E")
# Those that work on vectors of four floats where they can, and on rest and odd places one by one; their pointers may come from a table, and loads are generic then.
ARENAS = re.compile(r"_Z\d+(updateIL11update_rule\dEE|pack_all|unpack_all)")
WRITES = re.compile(r"_Z\d+(eltwise|apply|bwd_apply|bn_pool_apply|bn_poolI|input)")  # sums alone write a few values a channel
DIVISION = re.compile(r"\bI2F\.[US]?\d*\.?RP\b")  # how an integer division begins


def tool(name):
    beside = os.path.join("/usr/local/cuda/bin", name)
    return shutil.which(name) or (beside if os.path.exists(beside) else None)


def dump(*args):
    return subprocess.run([tool("cuobjdump"), *args], capture_output=True, text=True, check=True).stdout


def resources(obj):
    """{(arch, kernel): (registers, bytes of stack and local memory)}"""
    found, arch, kernel = {}, None, None
    for line in dump("--dump-resource-usage", obj).splitlines():
        if m := re.match(r"arch = sm_(\w+)", line):
            arch = m[1]
        elif m := re.match(r" Function (\w+):", line):
            kernel = m[1]
        elif m := re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", line):
            found[arch, kernel] = int(m[1]), int(m[2]) + int(m[3])
    return found


def code(obj):
    """{(arch, kernel): lines}"""
    found, arch, kernel = {}, None, None
    for line in dump("-sass", obj).splitlines():
        if m := re.search(r"code for sm_(\w+)", line):
            arch = m[1]
        elif m := re.search(r"Function : (\w+)", line):
            kernel = m[1]
            found[arch, kernel] = []
        elif kernel and re.match(r"\s+/\*[0-9a-f]{4,}\*/", line):
            found[arch, kernel].append(line)
    return found


def loops(lines):
    """Code between a branch that goes back and where it goes to."""
    at = [int(re.match(r"\s+/\*([0-9a-f]+)\*/", line)[1], 16) for line in lines]
    for i, line in enumerate(lines):
        m = re.search(r"\bBRA(?:\.\w+)*\s.*?(0x[0-9a-f]+)", line)
        if m and int(m[1], 16) < at[i]:
            yield "\n".join(x for a, x in zip(at, lines) if int(m[1], 16) <= a <= at[i])


def faults(kernel, registers, local, lines):
    text = "\n".join(lines)
    width = "(128|256)" if "Li8E" in kernel or "IfLi4E" in kernel or ARENAS.match(kernel) else "64"
    if local or re.search(r"\b(LDL|STL)\b", text):
        yield f"{local} bytes of local memory"
    if registers > REGISTERS:
        yield f"{registers} registers, expected at most {REGISTERS}"
    if "input" not in kernel and not re.search(r"\bLDG?\.E\.(\w+\.)*128\b", text):
        yield "no load of 128 bits"
    if (WRITES.match(kernel) or ARENAS.match(kernel)) and not re.search(rf"\bSTG?\.E\.([\w]+\.)*{width}\b", text):
        yield f"no store of {width.strip('()')} bits"
    if any(DIVISION.search(x) and re.search(r"\bLDG?\.E\.(\w+\.)*128\b", x) for x in loops(lines)):
        yield "an integer is divided in a loop"


def main(objects):
    if not tool("cuobjdump") or not tool("nvdisasm"):
        print("1..0 # SKIP there is no cuobjdump or no nvdisasm here")
        return 0
    seen, bad = {}, []
    for obj in objects:
        sass = code(obj)
        for (arch, kernel), (registers, local) in resources(obj).items():
            if arch not in ARCHS or not (VECTOR.match(kernel) or ARENAS.match(kernel)):
                continue
            seen[arch] = seen.get(arch, 0) + 1
            bad += [f"sm_{arch} {kernel}: {what}" for what in faults(kernel, registers, local, sass[arch, kernel])]
    print(f"1..{max(1, len(seen))}")
    if not seen:
        print("ok 1 - no architecture that is looked at # SKIP built for others")
    for n, arch in enumerate(sorted(seen), 1):
        mine = [b for b in bad if b.startswith(f"sm_{arch} ")]
        for b in mine:
            print(f"# {b}")
        print(f"{'not ok' if mine else 'ok'} {n} - sm_{arch}: {seen[arch]} kernels on vectors")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
