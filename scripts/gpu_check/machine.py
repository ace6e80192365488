"""What is on this machine: GPU, Python with PyTorch, nvcc, the libraries that travel."""
import json
import os
import platform
import re
import shutil
import sys
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from commands import output

TORCH_FACTS = """
import json, torch
facts = {"version": torch.__version__, "cuda": torch.version.cuda, "folder": torch.__path__[0], "sees_gpu": torch.cuda.is_available()}
if facts["sees_gpu"]:
    one = torch.cuda.get_device_properties(0)
    facts |= {"gpu": one.name, "bytes": one.total_memory, "capability": f"{one.major}{one.minor}", "multiprocessors": one.multi_processor_count}
print(json.dumps(facts))
"""
CMAKE_NEEDED = (3, 25)


@dataclass
class Machine:
    host: str = ""
    system: str = ""
    cores: int = 0
    memory_gib: float = 0
    commit: str = ""
    gpu: dict = field(default_factory=dict)  # name, memory_mib, driver, capability ("90"); empty: none
    python: str = ""  # that has PyTorch
    torch: dict = field(default_factory=dict)  # TORCH_FACTS; empty: none
    nvcc: str = ""
    nvcc_version: str = ""
    compiler: str = ""  # version of g++
    cmake: str = ""
    cmake_version: str = ""
    ninja: str = ""
    nccl: str = ""  # folder of a library that PyTorch brings; empty: the system's or none
    bundle: str = ""  # folder that scripts/gpu_bundle.sh has filled
    profiler: str = ""  # ncu
    sanitizer: str = ""  # compute-sanitizer

    def as_json(self):
        return asdict(self)

    def toolkit(self):
        return Path(self.nvcc).parent.parent if self.nvcc else None


def gpu_facts():
    """Of the first GPU, by nvidia-smi."""
    tool = program("nvidia-smi", "/usr/local/nvidia/bin/nvidia-smi")
    if not tool:
        return {}
    said = output([tool, "--query-gpu=name,memory.total,driver_version,compute_cap", "--format=csv,noheader,nounits"], 60)
    words = [word.strip() for word in (said or "").splitlines()[0].split(",")] if said else []
    if len(words) != 4 or not re.fullmatch(r"\d+\.\d+", words[3]):
        return {}
    memory = int(words[1]) if words[1].isdigit() else 0
    return {"name": words[0], "memory_mib": memory, "driver": words[2], "capability": words[3].replace(".", "")}


def gpu_of_torch(torch):
    """The same as PyTorch says it, for a machine without nvidia-smi."""
    if not torch.get("sees_gpu"):
        return {}
    return {"name": torch["gpu"], "memory_mib": torch["bytes"] >> 20, "driver": "unknown", "capability": torch["capability"]}


def python_with_torch(root):
    """(interpreter, facts) of the first that has a CUDA build of PyTorch, else of the first that has any."""
    found = "", {}
    for python in (os.environ.get("LOCKSTEP_PYTHON"), shutil.which("python3"), root / ".venv/bin/python", sys.executable):
        if not python or not os.access(python, os.X_OK):
            continue
        said = output([python, "-c", TORCH_FACTS], 120)
        facts = json.loads(said.splitlines()[-1]) if said else {}
        if facts.get("cuda"):
            return str(python), facts
        if facts and not found[1]:
            found = str(python), facts
    return found


def nvcc_of(cuda, torch_folder):
    """(path, version) of an nvcc of that major version; the version alone of one of another; "" and "" where there is none."""
    site = Path(torch_folder).parent if torch_folder else Path("/nonexistent")
    major = (cuda or "").partition(".")[0]
    candidates = [os.environ.get("CUDACXX"), shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"]
    candidates += [f"/usr/local/cuda-{cuda}/bin/nvcc", site / f"nvidia/cu{major}/bin/nvcc", site / "nvidia/cuda_nvcc/bin/nvcc"]
    seen = ""
    for path in candidates:
        if not path or not os.access(path, os.X_OK):
            continue
        version = re.search(r"release (\d+)\.(\d+)", output([path, "--version"]) or "")
        if version and version[1] == major:
            return str(real_nvcc(path)), f"{version[1]}.{version[2]}"
        seen = seen or (f"{version[1]}.{version[2]}" if version else "")
    return "", seen


def real_nvcc(path):
    """Behind a link or a script of one line, so that its toolkit lies around it."""
    path = Path(path).resolve()
    if path.stat().st_size < 4096:
        named = re.search(r"(/\S+/nvcc)\b", path.read_text(errors="replace"))
        if named and os.access(named[1], os.X_OK):
            return Path(named[1]).resolve()
    return path


def unpacked_tools(bundle, tools):
    """CMake and ninja of the bundle, where it brings them, in the folder `tools`."""
    for wheel in bundle.glob("wheels/*.whl"):
        with zipfile.ZipFile(wheel) as file:
            file.extractall(tools)
    programs = [path for path in tools.rglob("*") if path.is_file() and path.parent.name in ("bin", "scripts")]
    for path in programs:
        path.chmod(0o755)
    return {name: next((path for path in programs if path.name == name), "") for name in ("cmake", "ninja")}


def cmake_of(brought):
    """(path, version) of the first that is new enough; the version alone of one that is not."""
    seen = ""
    for path in (shutil.which("cmake"), brought):
        said = output([path, "--version"]) if path and os.access(path, os.X_OK) else None
        version = re.search(r"version (\d+)\.(\d+)(\S*)", said or "")
        if version and (int(version[1]), int(version[2])) >= CMAKE_NEEDED:
            return str(path), f"{version[1]}.{version[2]}{version[3]}"
        seen = seen or (f"{version[1]}.{version[2]}" if version else "")
    return "", seen


def program(name, *more):
    """The path of a program on the PATH or in CUDA's folders."""
    folders = [Path("/usr/local/cuda/bin"), Path("/usr/local/cuda/compute-sanitizer")]
    folders += sorted(Path("/opt/nvidia/nsight-compute").glob("*"), reverse=True)
    places = [shutil.which(name), *more, *(folder / name for folder in folders)]
    return next((str(place) for place in places if place and os.access(place, os.X_OK)), "")


def commit_of(root, bundle):
    said = output(["git", "-C", root, "rev-parse", "HEAD"])
    if said:
        return said + (", with changes" if output(["git", "-C", root, "status", "--porcelain"]) else "")
    place = bundle / "commit"
    return place.read_text().strip() if place.exists() else "unknown"


def memory_gib():
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) / 2**20
    return 0.0


def look(root, bundle, tools):
    """All that can be known; nothing is refused here."""
    brought = unpacked_tools(bundle, tools)
    python, torch = python_with_torch(root)
    nvcc, nvcc_version = nvcc_of(torch.get("cuda"), torch.get("folder"))
    cmake, cmake_version = cmake_of(brought["cmake"])
    beside = Path(torch.get("folder", "/nonexistent")).parent / "nvidia/nccl"
    return Machine(
        host=platform.node(), system=f"{platform.system()} {platform.release()}", cores=os.cpu_count() or 1, memory_gib=memory_gib(),
        commit=commit_of(root, bundle), gpu=gpu_facts() or gpu_of_torch(torch), python=python, torch=torch, nvcc=nvcc, nvcc_version=nvcc_version,
        compiler=(output(["g++", "-dumpfullversion"]) or ""), cmake=cmake, cmake_version=cmake_version,
        ninja=program("ninja", brought["ninja"]), nccl=str(beside) if beside.exists() else "",
        bundle=str(bundle) if (bundle / "libraries").exists() else "", profiler=program("ncu"), sanitizer=program("compute-sanitizer"),
    )


def missing(machine):
    """What the check cannot do without, each with the way out."""
    torch, found = machine.torch, []
    if not machine.gpu:
        found.append("no GPU: neither nvidia-smi nor PyTorch shows one")
    if not torch:
        found.append("no PyTorch in python3 or .venv; LOCKSTEP_PYTHON names another interpreter")
    elif not torch["cuda"]:
        found.append(f"PyTorch {torch['version']} of {machine.python} has no CUDA; LOCKSTEP_PYTHON names another interpreter")
    elif machine.gpu and not torch["sees_gpu"]:
        found.append(f"PyTorch {torch['version']} of {machine.python} does not see the GPU (driver {machine.gpu['driver']})")
    if torch.get("cuda") and not machine.nvcc:
        other = f"; the one found is {machine.nvcc_version}" if machine.nvcc_version else ""
        found.append(f"no nvcc of CUDA {torch['cuda'].partition('.')[0]}{other}; CUDACXX names one")
    if not machine.compiler:
        found.append("no g++")
    if not machine.cmake:
        other = f", the one found is {machine.cmake_version}" if machine.cmake_version else ""
        found.append(f"no CMake of {CMAKE_NEEDED[0]}.{CMAKE_NEEDED[1]} or later{other}; scripts/gpu_bundle.sh --tools brings one")
    if not machine.ninja:
        found.append("no ninja; scripts/gpu_bundle.sh --tools brings one")
    return found
