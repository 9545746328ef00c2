"""What the kernels became: machine code for each architecture, looked at with cuobjdump and nvdisasm (CUDA's, or those of pip's nvidia-cuda-cuobjdump and
nvidia-cuda-nvdisasm, which ./dev test --gpu-emulated fetches into the build). Every kernel of every file: it keeps everything in registers, few enough for two blocks of 256
threads on a multiprocessor (but for twins of those on vectors that take one element at a time). One that works on vectors moves 128 bits at a time and divides no integer in such a loop: a divider (kern.cuh) multiplies. The
others have to be known here, with why they are no matter, or at least divide no integer in a loop, either.

usage: sass.py [--tools DIR] OBJECT...   DIR: where else the programs may lie"""
import glob
import os
import re
import shutil
import subprocess
import sys

ARCHS = {"80", "90", "100"}
REGISTERS = 128  # 65,536 of a multiprocessor, two blocks of 256 threads
# Templates over <type, vector width, ...>: widths as mangled. What works on one element at a time is for odd shapes.
VECTOR = re.compile(r"_Z\d+(eltwise|apply_nhwc|apply_nchw|bwd_apply_nhwc|bwd_apply_nchw|sums_nhwc|sums_nchw|bn_mean|bn_pool|bn_pool_sums|bn_pool_apply|input_nhwc|input_folded|"
                    r"row_norm|row_norm_bwd|chain|sequence|table_gradient|embed|embed_bwd|rope|xent|xent_top|xent_sums|xent_parts_bwd)I"
                    r"(f|6__half|13__nv_bfloat16)Li(4|8)E")
# Those that work on vectors of four floats where they can, and on rest and odd places one by one; their pointers may come from a table, and loads are generic then.
ARENAS = re.compile(r"_Z\d+(updateIL11update_rule\dEE|pack_all|unpack_all)")
# The others, each with why it is not on vectors.
A_FEW = {"fixed", "finalise", "gather", "scaler", "norm", "store", "lars_norms", "metrics", "labels", "numbers", "tokens", "xent_parts"}  # a few values a channel or a step
IN_RUNS = {"squares", "lars_squares", "blend", "round_all", "convert", "columns", "transpose", "avgpool_nchw", "avgpool_nhwc", "count_bad", "gap", "noise",
           "checksum"}
ODD = {"eltwise", "apply_nhwc", "apply_nchw", "bwd_apply_nhwc", "bwd_apply_nchw", "sums_nhwc", "sums_nchw", "chain", "sequence",
       "table_gradient", "embed", "embed_bwd", "rope", "xent", "xent_top", "xent_sums", "xent_parts_bwd"}  # one element at a time: odd shapes
PRODUCTS = {"depthwise", "depthwise_weight", "attention", "attention_bwd_queries", "attention_bwd_keys"}  # multiply-adds bound them, not memory
LONG = {"row_norm_any", "row_norm_bwd_any"}  # rows of odd sizes
LOSSES = {"loss", "loss_sums", "loss_parts_bwd"}  # that are not plain: rows of a classifier, a small part of a step
DIVIDE = {"maxpool", "maxpool_bwd", "avgpool_bwd",  # a training step in halves has pooling within the batch norm before it
          "input", "input_mixed",  # of other channels or layouts than input_nhwc's; of two pictures
          "group_forward", "group_data", "group_weight",  # convolutions in groups that cuDNN has no engine for
          "distance", "expect"} | ODD  # 512 elements an engine that is proven
WRITES = re.compile(r"_Z\d+(eltwise|apply|bwd_apply|bn_pool_apply|bn_poolI|input|row_norm|chain|sequence|embed|rope|xentI|xent_parts_bwd)")  # sums alone write a few values a channel
DIVISION = re.compile(r"\bI2F\.[US]?\d*\.?RP\b")  # how an integer division begins


def look_in(folder):
    """Programs that lie there, as pip lays them out, come before others."""
    os.environ["PATH"] = os.pathsep.join([*glob.glob(os.path.join(folder, "nvidia", "*", "bin")), os.environ["PATH"], "/usr/local/cuda/bin"])


def dump(*args):
    return subprocess.run(["cuobjdump", *args], capture_output=True, text=True, check=True).stdout


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


def code(obj, arch):
    """{kernel: lines}"""
    found, kernel = {}, None
    for line in dump("-sass", "-arch", f"sm_{arch}", obj).splitlines():
        if m := re.search(r"Function : (\w+)", line):
            kernel = m[1]
            found[kernel] = []
        elif kernel and re.match(r"\s+/\*[0-9a-f]{4,}\*/", line):
            found[kernel].append(line)
    return found


def loops(lines):
    """Code between a branch that goes back and where it goes to."""
    at = [int(re.match(r"\s+/\*([0-9a-f]+)\*/", line)[1], 16) for line in lines]
    for i, line in enumerate(lines):
        m = re.search(r"\bBRA(?:\.\w+)*\s.*?(0x[0-9a-f]+)", line)
        if m and int(m[1], 16) < at[i]:
            yield "\n".join(x for a, x in zip(at, lines) if int(m[1], 16) <= a <= at[i])


def name(kernel):
    """Of "_Z7eltwiseIfLi1E...": eltwise."""
    m = re.match(r"_Z(\d+)", kernel)
    return kernel[m.end():m.end() + int(m[1])]


def on_vectors(kernel):
    return VECTOR.match(kernel) or ARENAS.match(kernel)


def faults_of_vectors(kernel, lines):
    text = "\n".join(lines)
    width = "(128|256)" if "Li8E" in kernel or "IfLi4E" in kernel or ARENAS.match(kernel) else "64"
    if "input" not in kernel and not re.search(r"\bLDG?\.E\.(\w+\.)*(128|256)\b", text):
        yield "no load of 128 bits"
    if (WRITES.match(kernel) or ARENAS.match(kernel)) and not re.search(rf"\bSTG?\.E\.([\w]+\.)*{width}\b", text):
        yield f"no store of {width.strip('()')} bits"
    if any(DIVISION.search(x) and ("input" in kernel or re.search(r"\bLDG?\.E\.(\w+\.)*(128|256)\b", x)) for x in loops(lines)):
        yield "an integer is divided in a loop"


def faults_of_others(kernel, lines):
    if name(kernel) not in A_FEW | IN_RUNS | DIVIDE | PRODUCTS | LONG | LOSSES:
        yield "neither on vectors nor among those of which this test knows why they need not be"
    elif name(kernel) not in DIVIDE and any(DIVISION.search(x) for x in loops(lines)):
        yield "an integer is divided in a loop"


def faults(kernel, registers, local, lines):
    if (local or any(re.search(r"\b(LDL|STL)\b", x) for x in lines)) and (on_vectors(kernel) or name(kernel) not in ODD):
        yield f"{local} bytes of local memory"
    if registers > REGISTERS:
        yield f"{registers} registers, expected at most {REGISTERS}"
    yield from (faults_of_vectors if on_vectors(kernel) else faults_of_others)(kernel, lines)


def look_at(obj, seen, bad):
    """seen: {arch: {kernel on vectors or not: how many}}"""
    kernels = resources(obj)
    for arch in ARCHS & {a for a, _ in kernels}:
        sass, of = code(obj, arch), seen.setdefault(arch, {True: 0, False: 0})
        for kernel, (registers, local) in ((k, used) for (a, k), used in kernels.items() if a == arch):
            of[bool(on_vectors(kernel))] += 1
            bad += [f"sm_{arch} {kernel}: {what}" for what in faults(kernel, registers, local, sass[kernel])]


def main(argv):
    if argv[:1] == ["--tools"]:
        look_in(argv[1])
        argv = argv[2:]
    if not shutil.which("cuobjdump") or not shutil.which("nvdisasm"):
        print("1..0 # SKIP no cuobjdump or no nvdisasm: ./dev test --gpu-emulated fetches them, and had no network")
        return 0
    seen, bad = {}, []
    for obj in argv:
        look_at(obj, seen, bad)
    print(f"1..{max(1, len(seen))}")
    if not seen:
        print("ok 1 - no architecture that is looked at # SKIP built for others")
    for n, arch in enumerate(sorted(seen), 1):
        mine = [b for b in bad if b.startswith(f"sm_{arch} ")]
        for b in mine:
            print(f"# {b}")
        print(f"{'not ok' if mine else 'ok'} {n} - sm_{arch}: {seen[arch][True]} kernels on vectors, {seen[arch][False]} others, in {len(argv)} files")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
