"""The tests that carry the label gpu, one after another."""
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from commands import Clock, last_lines, output, run, without_colours

LABEL = "gpu"
COST = 10.0  # of a test that says none: ctest's property COST, here its seconds
TEST_SECONDS = 90  # of one test, unless its property TIMEOUT is less
CASE_SECONDS = 40  # a test of GoogleTest alone
GTEST_FAILURE = re.compile(r": (?:Failure|error:)|^unknown file|C\+\+ exception|^CUDA error|Error:", re.MULTILINE)


def ctest_of(machine):
    beside = Path(machine.cmake).parent / "ctest"
    return beside if beside.exists() else "ctest"


def labelled(ctest, build):
    """[{name, cost, timeout, command, disabled}], shortest first; None where ctest cannot say."""
    said = output([ctest, "--test-dir", build, "--show-only=json-v1", "-L", f"^{LABEL}$"], 60)
    if not said:
        return None
    return sorted(map(described, json.loads(said[said.index("{"):])["tests"]), key=lambda test: (test["cost"], test["name"]))


def described(test):
    properties = {entry["name"]: entry["value"] for entry in test.get("properties", [])}
    return {
        "name": test["name"],
        "command": test.get("command", []),
        "cost": float(properties.get("COST", COST)) or COST,
        "timeout": min(TEST_SECONDS, float(properties.get("TIMEOUT", TEST_SECONDS))),
        "disabled": bool(properties.get("DISABLED", False)),
    }


def targets(tests, build):
    """Programs of the build folder that the tests start."""
    folder = Path(build).resolve()
    programs = [Path(test["command"][0]) for test in tests or [] if test["command"]]
    return sorted({program.name for program in programs if program.parent.resolve() == folder})


def run_test(ctest, build, test, seconds, log):
    """{name, result, seconds, said}; result: passed, failed, skipped, cut."""
    junit = Path(build).resolve() / "gpu_check.junit.xml"
    junit.unlink(missing_ok=True)
    command = [ctest, "--test-dir", build, "-R", f"^{re.escape(test['name'])}$", "--verbose", "--output-junit", junit]
    done = run(command, seconds, log)  # verbose: what a test says is there also when it is cut
    found = {"name": test["name"], "seconds": done.seconds, "result": result_of(done, junit)}
    if found["result"] != "passed":
        found["said"] = essence(without_prefix(done.said))
    return found


def result_of(done, junit):
    if done.code is None:
        return "cut"
    try:
        case = next(iter(ElementTree.parse(junit).getroot().iter("testcase")), None)
    except (OSError, ElementTree.ParseError):
        return "failed"
    if case is None:
        return "failed"
    return {"run": "passed", "notrun": "skipped", "disabled": "skipped"}.get(case.get("status"), "failed")


def without_prefix(said):
    """What the test said: ctest puts its number before each line."""
    return re.sub(r"^\d+: ", "", without_colours(said), flags=re.MULTILINE)


def essence(said):
    """Where the first failure is, which tests failed, and the end."""
    lines = [line.rstrip() for line in said.splitlines() if line.strip()]
    first = next((number for number, line in enumerate(lines) if GTEST_FAILURE.search(line)), None)
    beginning = lines[first : first + 14] if first is not None else []
    failed = [line for line in dict.fromkeys(lines) if line.startswith("[  FAILED  ] ") and "." in line][:20]
    return last_lines("\n".join([*beginning, *failed, "...", *lines[-12:]]), 46)


def run_all(ctest, build, tests, clock, log, note=print, results=None):
    """[{name, result, seconds, said}], added to `results` one by one; what the clock leaves no time for is "not run"."""
    results = [] if results is None else results
    for test in tests:
        if test["disabled"]:
            results.append({"name": test["name"], "result": "skipped", "seconds": 0.0, "said": "disabled in the build"})
        elif clock.left() < 2:
            results.append({"name": test["name"], "result": "not run", "seconds": 0.0, "said": "no time was left for it"})
        else:
            results.append(run_test(ctest, build, test, min(clock.left(), test["timeout"]), log))
        note(f"  {results[-1]['result']:<8} {results[-1]['seconds']:6.1f} s  {test['name']}")
    return results


def is_gtest(test):
    return bool(test["command"]) and Path(test["command"][0]).name.endswith(("_test", "_tests"))


def cases_of(command):
    """Suite.Case of a program of GoogleTest."""
    cases, suite = [], ""
    for line in (output([*command, "--gtest_list_tests"], 60) or "").splitlines():
        name = line.partition("#")[0].rstrip()
        if name.startswith("  "):
            cases.append(suite + name.strip())
        elif name.endswith("."):
            suite = name
    return cases


def alone(test, clock, log):
    """After an error a GPU answers nothing more in that process: each test of a failed file in a process of its own, which waits
    for each kernel. [{name, result, said}] of those that fail, and how many were run."""
    failing, count = [], 0
    for case in cases_of(test["command"]):
        if clock.left() < 5:
            break
        command = [*(word for word in test["command"] if not word.startswith("--gtest_filter")), f"--gtest_filter={case}"]
        done = run(command, min(CASE_SECONDS, clock.left()), log, environment={"CUDA_LAUNCH_BLOCKING": "1"})
        count += 1
        if not done.ok:
            result = "cut" if done.code is None else "failed"
            failing.append({"name": case, "result": result, "said": f"{done.how}\n{essence(without_colours(done.said))}"})
    return {"run_alone": count, "failing": failing}


def isolate(tests, results, clock, log, note=print):
    """Adds to each failed file of GoogleTest which of its tests fail alone, as far as the clock goes."""
    by_name = {test["name"]: test for test in tests}
    for result in results:
        test = by_name[result["name"]]
        if result["result"] in ("failed", "cut") and is_gtest(test) and clock.left() > 10:
            result["cases"] = alone(test, clock.part(clock.left() / 2), log)
            note(f"  alone: {len(result['cases']['failing'])} of {result['cases']['run_alone']} tests of {test['name']} fail")


def test(machine, build, clock, log, note=print, results=None):
    """The part of the report; `results` as in run_all()."""
    ctest = ctest_of(machine)
    tests = labelled(ctest, build)
    if tests is None:
        return {"ok": False, "why": f"ctest could not list the tests of {build}", "results": []}
    if not tests:
        return {"ok": False, "why": f"no test of {build} carries the label {LABEL}", "results": []}
    results = run_all(ctest, build, tests, clock, log, note, results)
    isolate(tests, results, clock, log, note)
    return {"ok": all(result["result"] in ("passed", "skipped") for result in results), "results": results,
            "nccl_joined": lines_with(log, r"\bnccl\b.*(joined in|start-up)")}


def lines_with(log, pattern):
    text = Path(log).read_text(errors="replace") if Path(log).exists() else ""
    return [line.strip()[:200] for line in text.splitlines() if re.search(pattern, line)][:20]


def sanitize(machine, build, clock, log, note=print):
    """compute-sanitizer over the tests of kernels: reads and writes out of bounds, races of shared memory."""
    tests = [test for test in labelled(ctest_of(machine), build) or [] if is_gtest(test) and "kernel" in test["name"]]
    if not tests:
        return {"ok": False, "why": f"no test of kernels in {build}", "results": []}
    results = []
    for tool in ("memcheck", "racecheck"):
        for test in tests:
            part = Clock(min(clock.left() / 2, 200))
            command = [machine.sanitizer, "--tool", tool, "--error-exitcode", "86", "--print-limit", "20", *test["command"]]
            done = run(command, part.left(), log)
            results.append({"name": f"{tool} {test['name']}", "result": "passed" if done.ok else "cut" if done.code is None else "failed",
                            "seconds": done.seconds, "said": "" if done.ok else last_lines(done.said, 30)})
            note(f"  {results[-1]['result']:<8} {done.seconds:6.1f} s  {results[-1]['name']}")
    return {"ok": all(result["result"] == "passed" for result in results), "results": results}
