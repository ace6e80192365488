"""The preset cuda, as far as the check needs it."""
import os
import re
from pathlib import Path

from commands import last_lines, output, run

PROGRAMS = ("lockstep", "runtime", "lockstep_nccl", "gpu_tests")  # targets; of those that are there
ALONE = re.compile(r"gpu\.\w+_test")
FAILED = re.compile(r"error:|fatal error|undefined reference|CMake Error|cannot find|FAILED:|ninja: ")


def prefixes(bundle):
    """The folders of a bundle, as CMAKE_PREFIX_PATH takes them."""
    return ";".join(str(Path(bundle) / part / "usr") for part in ("libraries", "logging"))


def settings(machine, architectures):
    """What CMake is told beside the preset."""
    options = {
        "LOCKSTEP_TORCH": machine.torch["folder"],
        "LOCKSTEP_PYTHON": machine.python,
        "LOCKSTEP_WERROR": "OFF",  # another g++ than ours has warnings of its own; they stay in the log
        "LOCKSTEP_COMPILE_JOBS": machine.cores,
        "CMAKE_CUDA_COMPILER": machine.nvcc,
        "CMAKE_CUDA_ARCHITECTURES": architectures,
        "CMAKE_MAKE_PROGRAM": machine.ninja,
    }
    if machine.bundle:
        options["CMAKE_PREFIX_PATH"] = prefixes(machine.bundle)
        if not has_nccl_header(machine):
            options["LOCKSTEP_NCCL"] = f"{machine.bundle}/nccl"
    toolkit = machine.toolkit()
    if not (toolkit / "lib64").exists():  # PyPI's packages: nvcc itself looks for lib64
        options["CMAKE_CUDA_FLAGS"] = f"-L{toolkit}/lib"
    return options


def has_nccl_header(machine):
    places = [Path(machine.nccl) / "include"] if machine.nccl else []
    return any((place / "nccl.h").exists() for place in (*places, Path("/usr/include"), Path("/usr/local/include")))


def configure(root, build, machine, architectures, clock, log):
    """Done of CMake. A folder that was configured with other settings is configured anew."""
    options = settings(machine, architectures)
    stamp, wanted = build / "gpu_check.settings", repr(sorted(options.items()))
    build.mkdir(parents=True, exist_ok=True)
    fresh = [] if stamp.exists() and stamp.read_text() == wanted else ["--fresh"]
    command = [machine.cmake, *fresh, "--preset", "cuda", "-B", build, *(f"-D{name}={value}" for name, value in options.items())]
    done = run(command, clock.left(), log, environment=path_with(machine), folder=root)
    if done.ok:
        stamp.write_text(wanted)
    return done


def path_with(machine):
    """So that CMake and ninja call each other."""
    folders = dict.fromkeys(str(Path(program).parent) for program in (machine.cmake, machine.ninja) if program)
    return {"PATH": ":".join([*folders, os.environ.get("PATH", "")])}


def targets_of(build):
    """Of PROGRAMS those that this configuration has, and the tests that are programs of their own."""
    said = output([path_of_ninja(build), "-C", build, "-t", "targets", "all"], 60) or ""
    there = set(re.findall(r"^([\w.]+): ", said, re.MULTILINE))
    return [name for name in PROGRAMS if name in there] + sorted(name for name in there if ALONE.fullmatch(name))


def path_of_ninja(build):
    found = re.search(r"^CMAKE_MAKE_PROGRAM:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE)
    return found[1] if found else "ninja"


def compile_all(root, build, machine, more, clock, log):
    """Done of ninja on PROGRAMS and the targets `more`; it goes on after a failure, so that all of them are in the report."""
    targets = list(dict.fromkeys([*targets_of(build), *more]))
    command = [machine.ninja, "-C", build, "-j", machine.cores, "-k", "0", *targets]
    return run(command, clock.left(), log, environment=path_with(machine), folder=root)


def warnings_of(said):
    return len(re.findall(r"\bwarning:", said))


def why(done):
    """The lines that say what failed, and the end."""
    lines = [line.strip()[:300] for line in done.said.splitlines() if FAILED.search(line)]
    return f"{done.how}\n" + "\n".join(dict.fromkeys(lines[:25])) + "\n...\n" + last_lines(done.said, 12, 300)


def build(root, folder, machine, architectures, more_targets, clock, log):
    """The part of the report; `more_targets(folder)` is asked once CMake has run."""
    part = {"folder": str(folder), "architectures": architectures, "ok": False}
    configured = configure(root, folder, machine, architectures, clock, log)
    part["configure_seconds"] = configured.seconds
    if not configured.ok:
        return part | {"why": f"CMake: {why(configured)}"}
    compiled = compile_all(root, folder, machine, more_targets(folder), clock, log)
    part |= {"compile_seconds": compiled.seconds, "warnings": warnings_of(compiled.said)}
    part["nccl"] = (folder / "liblockstep_nccl.so").exists()
    lacking = [name for name in ("lockstep", "liblockstep_runtime.so") if not (folder / name).exists()]
    if not compiled.ok:
        part["why"] = why(compiled)
    elif lacking:
        part["why"] = f"ninja ended well, but there is no {', '.join(lacking)}"
    else:
        part["ok"] = True
    return part
