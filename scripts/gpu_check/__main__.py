"""The check of a machine with a GPU; scripts/gpu_check.sh starts it and says what it needs. See docs/gpu.md."""
import argparse
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import building
import measuring
import report as reports
import testing
from commands import Clock
from machine import Machine, look, missing

PARTS = ("build", "tests", "measure")
MORE = ("sanitizer",)  # only where it is asked for
OK, FAILED, LACKING = 0, 1, 3
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM)
ROOT = Path(__file__).resolve().parent.parent.parent


class Cut(BaseException):
    """Told to end."""


def parse(words):
    parser = argparse.ArgumentParser(prog="gpu_check.sh", description="Builds, tests and measures on a machine with an NVIDIA GPU; one report.")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS + MORE)} (default %(default)s); without build, "
                        "what an earlier call built is used")
    parser.add_argument("--budget", type=int, default=570, metavar="SECONDS", help="for all of it (default %(default)s)")
    parser.add_argument("--build-seconds", type=int, default=240, help="at most, for building (default %(default)s)")
    parser.add_argument("--test-seconds", type=int, default=180, help="at most, for the tests (default %(default)s)")
    parser.add_argument("--build-folder", type=Path, default=ROOT / "build/cuda")
    parser.add_argument("--bundle", type=Path, default=ROOT / ".carry", help="what scripts/gpu_bundle.sh has filled")
    parser.add_argument("--architectures", default="", help="as CMAKE_CUDA_ARCHITECTURES takes them; default: the GPU's")
    arguments = parser.parse_args(words)
    arguments.only = arguments.only.split(",")
    for part in arguments.only:
        if part not in PARTS + MORE:
            parser.error(f"--only {part}: one of {', '.join(PARTS + MORE)}")
    if arguments.budget < 1:
        parser.error("--budget is 1 or more")
    return arguments


class Check:
    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, folder
        self.clock = Clock(arguments.budget)
        self.machine = Machine()
        self.parts, self.not_done = {}, []
        self.verdict = "cut before anything was known"

    def log(self, part):
        return self.folder / f"{part}.log"

    def note(self, line):
        print(line, flush=True)

    def save(self):
        report = {
            "verdict": self.verdict, "seconds": time.monotonic() - self.clock.begin, "budget": self.arguments.budget,
            "command": " ".join(sys.argv[1:]), "machine": self.machine.as_json(), "parts": self.parts, "not_done": self.not_done,
        }
        reports.write(self.folder, report)
        return report

    def build(self):
        architectures = self.arguments.architectures or self.machine.gpu["capability"]
        ctest = testing.ctest_of(self.machine)
        return building.build(ROOT, self.arguments.build_folder, self.machine, architectures,
                              lambda folder: testing.targets(testing.labelled(ctest, folder), folder),
                              self.clock.part(self.arguments.build_seconds), self.log("build"))

    def tests(self):
        clock, results = self.clock.part(self.arguments.test_seconds), self.parts["tests"]["results"]
        return testing.test(self.machine, self.arguments.build_folder, clock, self.log("tests"), self.note, results)

    def measure(self):
        return measuring.measure(ROOT, self.machine, self.arguments.build_folder, self.folder, self.clock, self.log("measure"))

    def sanitizer(self):
        if not self.machine.sanitizer:
            return {"ok": False, "why": "no compute-sanitizer on this machine", "results": []}
        return testing.sanitize(self.machine, self.arguments.build_folder, self.clock, self.log("sanitizer"), self.note)

    def run_part(self, name):
        if self.clock.left() < 5:
            self.not_done.append((name, "no time was left for it"))
            return
        self.note(f"== {name}: {self.clock.left():.0f} s are left")
        self.verdict = f"cut during {name}"
        begin = time.monotonic()
        part = self.parts[name] = {"ok": False, "results": []}  # what is known so far, should it be cut
        try:
            part |= getattr(self, name)()
        except Exception:  # a fault of the check itself: the other parts are still worth having
            part["why"] = traceback.format_exc()
        part["seconds"] = time.monotonic() - begin
        self.note(f"== {name}: {'ok' if part['ok'] else 'FAILED'} after {part['seconds']:.0f} s")
        self.save()

    def run(self):
        """The exit code."""
        self.machine = look(ROOT, self.arguments.bundle.resolve(), ROOT / "build/gpu_tools")
        lacking = missing(self.machine)
        if lacking:
            self.verdict = "; ".join(lacking)
            self.not_done += [(part, "the machine lacks what it needs") for part in self.arguments.only]
            return LACKING
        for name in (*PARTS, *MORE):
            if name not in self.arguments.only:
                continue
            if name != "build" and not (self.arguments.build_folder / "lockstep").exists():
                self.not_done.append((name, "the program was not built"))
                continue
            self.run_part(name)
        failed = [name for name, part in self.parts.items() if not part["ok"]]
        self.verdict = f"failed: {', '.join(failed)}" if failed else "ok"
        if not failed and self.not_done:
            self.verdict = f"ok as far as it went; not done: {', '.join(what for what, _ in self.not_done)}"
        return FAILED if failed or self.not_done else OK


def cut(*_):
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise Cut


def main(words):
    arguments = parse(words)
    folder = Path(os.environ.get("OUT") or ROOT / "build/gpu_check").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    check = Check(arguments, folder)
    for part in (*PARTS, *MORE):
        check.log(part).unlink(missing_ok=True)
    for number in SIGNALS:
        signal.signal(number, cut)
    signal.alarm(arguments.budget + 2)  # each part ends before; this is for one that hangs
    code = FAILED
    try:
        code = check.run()
    except Cut:
        check.verdict = f"{check.verdict}: told to end after {time.monotonic() - check.clock.begin:.0f} s"
    except Exception:
        check.verdict = f"the check itself failed: {traceback.format_exc()}"
    finally:
        signal.alarm(0)
        report = check.save()
    for part in (*PARTS, *MORE):
        reports.shorten(check.log(part))
    print(f"\n{reports.on_screen(report)}\nreport: {folder / 'report.txt'}, {folder / 'report.json'}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
