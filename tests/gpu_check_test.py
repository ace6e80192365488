"""scripts/gpu_check.sh and scripts/gpu_bundle.sh as far as a machine without a GPU goes. gpu_check_test.py SOURCE_DIR

What ends the check early, what it says of tests that fail or hang, and that the bundle has every library in a form that can be used.
"""
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

SOURCE_DIR = Path(sys.argv.pop(1) if len(sys.argv) > 1 else ".").resolve()
sys.path[:0] = [str(SOURCE_DIR / "scripts/gpu_check"), str(SOURCE_DIR / "bench"), str(SOURCE_DIR / "bench/peers")]

import building  # noqa: E402
import gpu  # noqa: E402
import machine as machines  # noqa: E402
import report as reports  # noqa: E402
import testing  # noqa: E402
from commands import Clock, run  # noqa: E402
from machine import Machine  # noqa: E402

H200 = {"name": "NVIDIA H200", "memory_mib": 143771, "driver": "580.159.03", "capability": "90"}
TORCH = {"version": "2.11.0+cu130", "cuda": "13.0", "folder": "/torch", "sees_gpu": True}
WHOLE = Machine(gpu=H200, python="/python3", torch=TORCH, nvcc="/usr/local/cuda/bin/nvcc", nvcc_version="13.0", compiler="13.3.0",
                cmake=shutil.which("cmake"), cmake_version="3.28", ninja=shutil.which("ninja"), cores=2)

# What ctest finds in a build folder. The program of GoogleTest is a shell script: of its three tests the second fails, and after it,
# in the same process, the third.
TESTS = """\
add_test(quick "true")
add_test(broken "sh" "-c" "echo what went wrong; exit 3")
add_test(hangs "sh" "-c" "echo it waits; sleep 300 & wait")
add_test(late "true")
add_test(left_out "false")
add_test(skips "sh" "-c" "exit 77")
add_test(kernels "%s/gpu_tests" "kernels_test")
set_tests_properties(quick PROPERTIES LABELS gpu COST 1)
set_tests_properties(skips PROPERTIES LABELS gpu COST 2 SKIP_RETURN_CODE 77)
set_tests_properties(broken PROPERTIES LABELS gpu COST 3)
set_tests_properties(kernels PROPERTIES LABELS "check;gpu" COST 4)
set_tests_properties(hangs PROPERTIES LABELS gpu COST 5)
set_tests_properties(late PROPERTIES LABELS gpu COST 6)
"""
GTEST = """\
#!/bin/sh
case "$*" in
  *--gtest_list_tests*) printf 'Kernels.\\n  First\\n  Second  # a comment\\n  Third\\n' ;;
  *--gtest_filter=Kernels.Second*) echo "x_test.cpp:7: Failure"; echo "an illegal memory access"; exit 1 ;;
  *--gtest_filter=*) exit 0 ;;
  *) printf 'x_test.cpp:7: Failure\\nan illegal memory access\\n[  FAILED  ] Kernels.Second\\n[  FAILED  ] Kernels.Third\\n'; exit 1 ;;
esac
"""

PROJECT = """\
cmake_minimum_required(VERSION 3.25)
project(uses_the_bundle LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 20)
list(APPEND CMAKE_MODULE_PATH ${SOURCE_DIR}/cmake)
include(libraries)
find_package(GTest REQUIRED)
foreach(target spdlog::spdlog fmt::fmt tomlplusplus::tomlplusplus ZLIB::ZLIB GTest::gtest GTest::gmock lockstep_pcre2 lockstep_utf8proc
        lockstep_xxhash)
  get_target_property(place ${target} LOCATION)
  message(STATUS "place of ${target}: ${place}")
endforeach()
get_target_property(place nlohmann_json::nlohmann_json INTERFACE_INCLUDE_DIRECTORIES)
list(GET place 0 place)
message(STATUS "place of nlohmann_json: ${place}")
add_library(both SHARED both.cpp)
target_link_libraries(both PRIVATE spdlog::spdlog tomlplusplus::tomlplusplus nlohmann_json::nlohmann_json ZLIB::ZLIB lockstep_pcre2
                      lockstep_utf8proc lockstep_xxhash)
add_executable(user user.cpp)
target_link_libraries(user PRIVATE both GTest::gmock GTest::gtest)
"""
BOTH = """\
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <spdlog/spdlog.h>
#include <toml++/toml.h>
#include <utf8proc.h>
#include <xxhash.h>
#include <zlib.h>
#include <nlohmann/json.hpp>
std::string versions() {
  char pcre[64];
  pcre2_config(PCRE2_CONFIG_VERSION, pcre);
  spdlog::info("{}", XXH_versionNumber());
  const toml::table table = toml::parse("a = 1");
  return nlohmann::json{zlibVersion(), utf8proc_version(), pcre, table.size()}.dump();
}
"""
USER = """\
#include <gtest/gtest.h>
#include <string>
std::string versions();
TEST(Bundle, Works) { EXPECT_FALSE(versions().empty()); }
int main(int count, char** words) {
  testing::InitGoogleTest(&count, words);
  return RUN_ALL_TESTS();
}
"""


def load_main():
    """scripts/gpu_check/__main__.py as a module."""
    spec = importlib.util.spec_from_file_location("gpu_check_main", SOURCE_DIR / "scripts/gpu_check/__main__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_running(pid):
    """A zombie is not."""
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "\nState:\tZ" not in status.read_text()


def write_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="lockstep-gpu-check-")))

    def check(self, nvidia_smi, *words):
        """gpu_check.sh where nvidia-smi is this script: exit code, output, report."""
        write_program(self.folder / "bin/nvidia-smi", f"#!/bin/sh\n{nvidia_smi}\n")
        environment = {**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "OUT": str(self.folder / "out")}
        done = subprocess.run(["bash", SOURCE_DIR / "scripts/gpu_check.sh", *words], env=environment, capture_output=True, text=True, timeout=200)
        self.assertTrue((self.folder / "out/report.txt").exists(), done.stdout + done.stderr)
        return done.returncode, done.stdout, json.loads((self.folder / "out/report.json").read_text())


class Without(Folder):
    """A machine without a GPU."""

    def test_it_says_so(self):
        code, said, report = self.check("exit 9")
        self.assertEqual(code, 3, said)
        self.assertIn("no GPU: neither nvidia-smi nor PyTorch shows one", said)
        self.assertIn("no GPU: neither nvidia-smi nor PyTorch shows one", report["verdict"])
        self.assertEqual([what for what, _ in report["not_done"]], ["build", "tests", "measure"])
        self.assertIn("no GPU", (self.folder / "out/report.txt").read_text())

    def test_what_hangs_is_cut_and_the_report_comes(self):
        begin = time.monotonic()
        code, said, report = self.check("exec sleep 100", "--budget", "1")
        self.assertLess(time.monotonic() - begin, 60)
        self.assertEqual(code, 1, said)
        self.assertIn("told to end", report["verdict"])

    def test_flags_are_judged(self):
        done = subprocess.run(["bash", SOURCE_DIR / "scripts/gpu_check.sh", "--only", "dance"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--only dance", done.stderr)

    def test_each_thing_that_lacks_is_named(self):
        self.assertEqual(machines.missing(WHOLE), [])
        for change, text in (
            ({"gpu": {}}, "no GPU"),
            ({"torch": {}}, "no PyTorch"),
            ({"torch": TORCH | {"cuda": None}}, "has no CUDA"),
            ({"torch": TORCH | {"sees_gpu": False}}, "does not see the GPU (driver 580.159.03)"),
            ({"nvcc": "", "nvcc_version": "12.4"}, "no nvcc of CUDA 13; the one found is 12.4"),
            ({"cmake": "", "cmake_version": "3.22"}, "the one found is 3.22"),
            ({"ninja": ""}, "no ninja"),
            ({"compiler": ""}, "no g++"),
        ):
            found = machines.missing(Machine(**WHOLE.as_json() | change))
            self.assertEqual(len(found), 1, found)
            self.assertIn(text, found[0])

    def test_the_nvcc_is_that_of_pytorch(self):
        old = write_program(self.folder / "old/bin/nvcc", "#!/bin/sh\necho 'release 12.4, V12.4.1'\n")
        real = write_program(self.folder / "real/bin/nvcc", "#!/bin/sh\necho 'release 13.0, V13.0.88'\n" + "# long\n" * 1000)
        behind = write_program(self.folder / "behind/nvcc", f'#!/bin/sh\nexec {real} "$@"\n')
        for path, wanted in ((behind, (str(real.resolve()), "13.0")), (old, ("", "12.4"))):
            with mock.patch.dict(os.environ, {"CUDACXX": str(path)}), mock.patch.object(machines.shutil, "which", lambda name: None), \
                    mock.patch.object(machines.os, "access", lambda file, how: str(file).startswith(str(self.folder))):
                self.assertEqual(machines.nvcc_of("13.0", ""), wanted)

    def test_the_gpu_is_the_first_that_is_there(self):
        said = "NVIDIA H200, 143771, 580.159.03, 9.0"
        write_program(self.folder / "nvidia-smi", f"#!/bin/sh\necho '{said}'\necho '{said}'\n")
        with mock.patch.dict(os.environ, {"PATH": f"{self.folder}:{os.environ['PATH']}"}):
            self.assertEqual(machines.gpu_facts(), H200)
        seen = TORCH | {"gpu": "NVIDIA H200", "bytes": 143771 << 20, "capability": "90"}
        self.assertEqual(machines.gpu_of_torch(seen), H200 | {"driver": "unknown"})
        self.assertEqual(machines.gpu_of_torch({}), {})

    def test_what_cmake_is_told(self):
        (self.folder / "lib64").mkdir()
        whole = Machine(**WHOLE.as_json() | {"nvcc": str(self.folder / "bin/nvcc"), "bundle": "/b"})
        options = building.settings(whole, "90")
        self.assertEqual(options["CMAKE_PREFIX_PATH"], "/b/libraries/usr;/b/logging/usr")
        self.assertEqual((options["CMAKE_CUDA_ARCHITECTURES"], options["LOCKSTEP_TORCH"]), ("90", "/torch"))
        self.assertNotIn("CMAKE_CUDA_FLAGS", options)
        (self.folder / "lib64").rmdir()
        self.assertEqual(building.settings(whole, "90")["CMAKE_CUDA_FLAGS"], f"-L{self.folder}/lib")


class Results(Folder):
    """What is said of tests that fail, and of those that hang."""

    def setUp(self):
        super().setUp()
        self.build = self.folder / "build"
        write_program(self.build / "gpu_tests", GTEST)
        write_program(self.build / "lockstep", "#!/bin/sh\n")
        (self.build / "CTestTestfile.cmake").write_text(TESTS % self.build)
        listed = testing.labelled

        def labelled(ctest, build):
            return [test | ({"timeout": 5.0} if test["name"] == "hangs" else {}) for test in listed(ctest, build)]

        self.enterContext(mock.patch.object(testing, "labelled", labelled))

    def test_shortest_first_and_on_after_failures(self):
        part = testing.test(WHOLE, self.build, Clock(300), self.folder / "tests.log", note=lambda line: None)
        results = {result["name"]: result for result in part["results"]}
        self.assertEqual(list(results), ["quick", "skips", "broken", "kernels", "hangs", "late"])
        found = [result["result"] for result in part["results"]]
        self.assertEqual(found, ["passed", "skipped", "failed", "failed", "cut", "passed"])
        self.assertFalse(part["ok"])
        self.assertIn("what went wrong", results["broken"]["said"])
        self.assertIn("it waits", results["hangs"]["said"])
        tests = testing.labelled("ctest", self.build)
        late = testing.run_all("ctest", self.build, tests, Clock(0), self.folder / "tests.log", note=lambda line: None)
        self.assertEqual({result["result"] for result in late}, {"not run"})
        self.assertEqual(testing.targets(testing.labelled("ctest", self.build), self.build), ["gpu_tests"])

    def test_tests_of_a_failed_file_are_run_alone(self):
        tests = [test for test in testing.labelled("ctest", self.build) if test["name"] == "kernels"]
        results = testing.run_all("ctest", self.build, tests, Clock(60), self.folder / "tests.log", note=lambda line: None)
        self.assertIn("[  FAILED  ] Kernels.Third", results[0]["said"])
        testing.isolate(tests, results, Clock(60), self.folder / "tests.log", note=lambda line: None)
        self.assertEqual(results[0]["cases"]["run_alone"], 3)
        failing, = results[0]["cases"]["failing"]
        self.assertEqual((failing["name"], failing["result"]), ("Kernels.Second", "failed"))
        self.assertIn("an illegal memory access", failing["said"])

    def test_the_report_of_a_whole_check(self):
        main = load_main()
        out = self.folder / "out"
        words = ["--only", "tests,measure", "--build-folder", str(self.build), "--budget", "300"]
        with mock.patch.dict(os.environ, {"OUT": str(out)}), mock.patch.object(main, "look", lambda *_: WHOLE), mock.patch("builtins.print"):
            self.assertEqual(main.main(words), 1)
        report = json.loads((out / "report.json").read_text())
        self.assertEqual(report["verdict"], "failed: tests, measure")  # there is no Python at that path
        text = (out / "report.txt").read_text()
        for words in ("NVIDIA H200, 143771 MiB", "2 passed, 2 failed, 1 cut, 1 skipped", "what went wrong", "== hangs: cut after",
                      "fails alone: Kernels.Second"):
            self.assertIn(words, text)
        self.assertLessEqual(len(list(out.iterdir())), 8)

    def test_what_a_command_started_ends_with_it(self):
        log = self.folder / "log"
        begin = time.monotonic()
        done = run(["sh", "-c", "sleep 301 & echo $!; wait"], 3, log)
        self.assertIsNone(done.code)
        self.assertLess(time.monotonic() - begin, 20)
        self.assertFalse(is_running(done.said.strip()))
        self.assertEqual(run(["sh", "-c", "echo more; exit 4"], 5, log).said, "more\n")
        self.assertEqual(run(["/no/such/program"], 5, log).code, 127)

    def test_figures_as_text(self):
        steps = {"median_ms": 100.0, "tokens_per_s": 327680.0, "share_of_limit": 0.7, "peak_bytes": 2**34}
        row = steps | {"work": "gpt2-124m 32x1024", "predicted_bytes": 2**34, "times_as_fast": {"ratio": 1.25, "smallest": 1.2, "largest": 1.3},
                       "peers": [steps | {"median_ms": 125.0, "program": "pytorch compile autocast"}]}
        figures = {"comparisons": [row], "kernels": {"lockstep": gpu.shares([("norm", 2, 0.001), ("gemm", 4, 0.003)])},
                   "actions": gpu.by_kind(["F embed m0", "F b0 m0", "F b1 m0", "NORM"], [[0, 0, 1e-3, 0], [1, 1e-3, 2e-3, 1e-3], [2, 2e-3, 3e-3, 1e-3]]),
                   "not_done": [("llama3-8b", "20 s were left")]}
        text = "\n".join(reports.measuring(figures))
        self.assertIn("1.25 (1.20..1.30)", text)
        self.assertIn("75.0%       4 x      750.0 us  gemm", text)
        self.assertIn("F b              2 x     2000.0 us each      4.00 ms", text)
        self.assertIn("not measured: llama3-8b", text)

    def test_what_ncu_says(self):
        head = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
        rows = ['"0","a(float *)","gpu__time_duration.sum","ns","1,000"', '"1","a(float *)","gpu__time_duration.sum","ns","3000"',
                '"2","b","gpu__time_duration.sum","us","2"', '"2","b","other","","5"']
        found = gpu.read_ncu("\n".join(["==PROF== Connected", head, *rows, "==PROF== Disconnected"]))
        self.assertEqual([(name, calls, round(seconds * 1e9)) for name, calls, seconds in found], [("a(float *)", 2, 4000), ("b", 1, 2000)])
        self.assertEqual(gpu.read_ncu("==ERROR== no permission"), [])


class Bundle(Folder):
    """scripts/gpu_bundle.sh, and a project that sees the bundle alone."""

    def test_every_library_is_found_in_it_and_works(self):
        bundle = self.folder / "carried"
        done = subprocess.run(["bash", SOURCE_DIR / "scripts/gpu_bundle.sh", bundle], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        files = [path for path in bundle.rglob("*") if not path.is_dir()]
        self.assertEqual([path for path in bundle.rglob("*") if path.is_symlink()], [])
        self.assertLess(sum(path.stat().st_size for path in files), 20 << 20)
        self.assertTrue((bundle / "commit").read_text().strip())
        moved = bundle.rename(self.folder / "elsewhere")
        self.use(moved)

    def use(self, bundle):
        project = self.folder / "project"
        project.mkdir()
        for name, text in (("CMakeLists.txt", PROJECT), ("both.cpp", BOTH), ("user.cpp", USER)):
            (project / name).write_text(text)
        said = self.succeeds("cmake", "-S", project, "-B", project / "build", "-G", "Ninja", f"-DSOURCE_DIR={SOURCE_DIR}",
                             f"-DCMAKE_PREFIX_PATH={building.prefixes(bundle)}")
        places = dict(line.removeprefix("-- place of ").split(": ", 1) for line in said.splitlines() if line.startswith("-- place of "))
        self.assertEqual(len(places), 10, said)
        self.assertEqual({name: place for name, place in places.items() if not place.startswith(str(bundle))}, {})
        self.succeeds("ninja", "-C", project / "build")
        self.succeeds(project / "build/user")
        loaded = self.succeeds("ldd", project / "build/libboth.so")
        for library in ("libspdlog", "libfmt", "libtomlplusplus", "libz", "libpcre2-8", "libutf8proc", "libxxhash"):
            line = next(line for line in loaded.splitlines() if line.strip().startswith(library))
            self.assertIn(str(bundle), line)

    def succeeds(self, *command):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}{done.stderr}")
        return done.stdout


if __name__ == "__main__":
    unittest.main(verbosity=2)
