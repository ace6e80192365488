"""Builds tests with sanitizers and runs them: run.py asan|tsan [--bounded]

asan: AddressSanitizer and UBSan over the rooms without LibTorch, comm and checkpoint.
tsan: ThreadSanitizer over comm and saving beside training.
--bounded: what `make check` runs of it: few enough files to be compiled in minutes, few enough cases to run in seconds.

LibTorch itself is not instrumented: what a sanitizer says of its inside is unknown to it, and what it says of ours counts.
"""
import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = Path(__file__).resolve().parent

# Their tests need MPI's launcher or GPUs.
ELSEWHERE = ("comm.mpi", "comm.nccl")
CORE = [line.split()[1] for line in (ROOT / "cmake/rooms.txt").read_text().splitlines() if line.endswith(" core")]
# Of the tests with many ranks and sizes: 2 and 3 ranks.
FEW_RANKS = "*/1:*/2"
# The readers of safetensors alone; all of checkpoint needs the rooms that train (tests/CMakeLists.txt).
READERS = "sanitized.safetensors_fuzz_test"


def tests_of(*rooms):
    """The names of the test programs of these rooms, as cmake/rooms.cmake makes them."""
    found = [f"{room.replace('/', '_')}.{path.stem}" for room in rooms for path in sorted((ROOT / "lockstep" / room).glob("*_test.cpp"))]
    assert found, rooms
    return [name for name in found if not name.startswith(ELSEWHERE)]


# Estimates hundreds of layouts; what it runs others run too.
LONG = {"plan_search.quick_time_test"}

# preset -> (tests of --bounded, all tests); a test may come with a filter of its cases.
PLAN = {
    "asan": ({**dict.fromkeys([*(name for name in tests_of(*CORE, "comm") if name not in LONG), READERS], "*"), "comm.collectives_test": FEW_RANKS,
              "comm.staged_collectives_test": FEW_RANKS + ":Staging*"},
             {name: "*" for name in tests_of(*CORE, "comm", "checkpoint")}),
    "tsan": ({"comm.faults_test": "*", "comm.collectives_test": FEW_RANKS},
             {"comm.faults_test": "*", "comm.collectives_test": "*", "comm.staged_collectives_test": FEW_RANKS + ":InFlight*",
              "checkpoint.async_save_test": "*"}),
}
# More flags of a test: a fuzzer goes on with further seeds.
FLAGS = {"chat.template_fuzz_test": ["--gtest_repeat=5"]}


def options():
    """What the sanitizers are told."""
    suppressions = {name: f"suppressions={HERE / name}.txt" for name in ("lsan", "tsan")}
    return {
        # Leaks are looked for: each test ends with main() and LibTorch's own tables stay reachable until then.
        "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1:check_initialization_order=1",
        "LSAN_OPTIONS": f"{suppressions['lsan']}:print_suppressions=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        # A forked child of a test starts threads of its own (launched and killed ranks).
        "TSAN_OPTIONS": f"{suppressions['tsan']}:die_after_fork=0:second_deadlock_stack=1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("preset", choices=sorted(PLAN))
    parser.add_argument("--bounded", action="store_true")
    arguments = parser.parse_args()
    build = ROOT / "build" / arguments.preset
    plan = PLAN[arguments.preset][0 if arguments.bounded else 1]
    configured = subprocess.run(["cmake", "--preset", arguments.preset], cwd=ROOT, capture_output=True, text=True)
    if configured.returncode != 0:
        sys.exit(configured.stdout + configured.stderr)
    built = subprocess.run(["cmake", "--build", build, "--target", *plan], capture_output=True, text=True)
    if built.returncode != 0:
        sys.exit(built.stdout[-8000:] + built.stderr)
    failed = []
    for name, cases in plan.items():
        done = subprocess.run([build / name, f"--gtest_filter={cases}", *FLAGS.get(name, [])], cwd=build, capture_output=True, text=True, timeout=1800,
                              env={**os.environ, **options()})
        said = done.stdout + done.stderr
        good = done.returncode == 0 and "Sanitizer" not in said and "runtime error" not in said
        print(f"{'ok    ' if good else 'FAILED'} {name}", flush=True)
        if not good:
            failed.append(name)
            print(said[-12000:], flush=True)
    sys.exit(f"{len(failed)} of {len(plan)} failed under {arguments.preset}: {' '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
