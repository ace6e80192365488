"""Another project finds and uses an installed Lockstep.

    package_test.py BUILD_DIR

Installs BUILD_DIR under a fresh prefix, builds the programs of examples/ in a project of its own with
find_package(lockstep) and runs them, and runs the installed program. What find_package refuses is tried too.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BUILD_DIR = Path()
SOURCE_DIR = Path(__file__).resolve().parent.parent

EXAMPLES = ["01_train", "02_parallel_linear", "03_own_block", "04_forward_only"]

PROJECT = """cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES CXX)
find_package(lockstep 0.1 REQUIRED)
add_executable(core_user core_user.cpp)
target_link_libraries(core_user PRIVATE lockstep::core)
""" + "".join(f"""add_executable({name} {name}.cpp)
target_link_libraries({name} PRIVATE lockstep::lockstep)
""" for name in EXAMPLES)

CORE_USER = """#include <cstdio>
#include "lockstep/program/passes/make_layout.h"
int main() {
  lockstep::config::RunConfig config;
  config.model.preset = "gpt2-test";
  config.train.seq_len = 64;
  const auto layout = lockstep::program::make_layout(config, lockstep::arch::resolve_model(config.model), 4);
  std::puts(lockstep::program::describe(layout).c_str());
}
"""

CORE_PROJECT = """cmake_minimum_required(VERSION 3.25)
project(core_consumer LANGUAGES CXX)
find_package(lockstep REQUIRED COMPONENTS core)
if(TARGET lockstep::runtime OR NOT TARGET lockstep::core)
  message(FATAL_ERROR "asked for core alone")
endif()
"""


def run(command, **options):
    """Standard output and error together; fails with them where the command does."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **options.pop("env", {})}
    result = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            timeout=240, env=environment, **options)
    if result.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}: exit code {result.returncode}\n{result.stdout}")
    return result.stdout


def cached(name):
    """A value of the build's CMake cache."""
    match = re.search(rf"^{name}:\w+=(.*)$", (BUILD_DIR / "CMakeCache.txt").read_text(), re.MULTILINE)
    return match[1] if match else ""


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="lockstep-package-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.prefix = cls.folder / "prefix"
        run(["cmake", "--install", BUILD_DIR, "--prefix", cls.prefix])

    def configure(self, name, files, *options):
        source = self.folder / name
        source.mkdir()
        for file, text in files.items():
            (source / file).write_text(text)
        if sanitizers := cached("LOCKSTEP_SANITIZE"):
            options += (f"-DCMAKE_CXX_FLAGS=-fsanitize={sanitizers}",)
        run(["cmake", "-S", source, "-B", source / "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
             f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DCMAKE_CXX_COMPILER={cached('CMAKE_CXX_COMPILER')}", *options])
        return source / "build"

    def test_another_project(self):
        examples = {f"{name}.cpp": (SOURCE_DIR / f"examples/{name}.cpp").read_text() for name in EXAMPLES}
        build = self.configure("consumer", {"CMakeLists.txt": PROJECT, "core_user.cpp": CORE_USER, **examples})
        run(["cmake", "--build", build, "-j", "1"])
        # 4 ranks, 8 sequences each of the default batch of 32.
        self.assertEqual(run([build / "core_user"]).strip(),
                         "dp 4 (ring), 1 microbatch x 8 sequences x 64 tokens, fp32")
        losses = [float(loss) for loss in re.findall(r"loss (\S+)", run([build / "01_train"], cwd=build))]
        self.assertEqual(len(losses), 20)
        self.assertLess(losses[-1], losses[0])
        self.assertNotIn("torch", run(["ldd", build / "core_user"]))
        self.parallel_layers(build)
        self.own_blocks(build)

    def parallel_layers(self, build):
        said = run([build / "02_parallel_linear"], cwd=build)
        errors = [float(error) for error in re.findall(r"\d\.\de[-+]\d+", said)]
        self.assertEqual(len(errors), 4, said)
        self.assertLess(max(errors), 1e-5)

    def own_blocks(self, build):
        """Blocks that the installed libraries have never heard of, with the verbs of the installed libraries."""
        for name, preset, layout in (("03_own_block", "square", "tp 2"), ("04_forward_only", "mixer", "zero 3")):
            folder = build / f"{name}.run"
            folder.mkdir()
            said = run([build / name], cwd=folder)   # its verify ends with 0 where layout and one rank agree
            self.assertIn(layout, said)
            common = [build / name, "train", f"--model.preset={preset}", "--data.train=toy", "--train.seq_len=32", "--train.global_batch=8",
                      "--train.micro_batch=4", "--run.dir=run", "--train.log_every=1"]
            run([*common, "-n", "2", "--parallel.zero=2", "--train.steps=2"], cwd=folder)
            said = run([*common, "--train.steps=4"], cwd=folder)   # another layout goes on from the checkpoint
            self.assertRegex(said, r"(?m)^ *4/4 ")
            self.assertIn("attention then ffn" if preset == "square" else "mixer",
                          run([build / name, "show", "memory", f"--model.preset={preset}", "--train.seq_len=32"], cwd=folder))
        refused = subprocess.run([build / "04_forward_only", "show", "layout", "-n", "2", "--model.preset=mixer", "--train.seq_len=32",
                                  "--parallel.tp=2", "--parallel.cp=1"], capture_output=True, text=True, timeout=60)
        self.assertEqual(refused.returncode, 2, refused.stdout)
        self.assertIn('tp(2) ranks would share branches "mixer"', refused.stderr)

    def test_core_alone_needs_no_torch(self):
        self.configure("core", {"CMakeLists.txt": CORE_PROJECT}, "-DLOCKSTEP_TORCH=/nonexistent")

    def test_a_torch_that_does_not_fit_is_refused(self):
        torch = self.folder / "torch"
        (torch / "include/ATen/core").mkdir(parents=True)
        (torch / "include/ATen/core/Tensor.h").touch()
        (torch / "version.py").write_text("__version__ = '1.0.0'\n")
        with self.assertRaisesRegex(AssertionError, r"needs\s+PyTorch[\s\S]*version\s+'1\.0\.0'"):
            self.configure("refused", {"CMakeLists.txt": PROJECT}, f"-DLOCKSTEP_TORCH={torch}")

    def test_installed_program(self):
        program = self.prefix / "bin/lockstep"
        version = cached("CMAKE_PROJECT_VERSION")
        self.assertIn(version, run([program, "--version"]))
        doctor = subprocess.run([program, "doctor", "--json"], capture_output=True, text=True, timeout=60)
        checks = {check["name"]: check for check in json.loads(doctor.stdout)["checks"]}
        for name in ("runtime library", "LibTorch"):
            self.assertTrue(checks[name]["ok"], checks[name])
        self.assertTrue(Path(checks["runtime library"]["found"]).resolve().is_relative_to(self.prefix.resolve()))
        # What is shipped lies where the program looks; one run of it is enough to see that it reads this file.
        shipped = self.prefix / "share/lockstep/published_runs.json"
        runs = json.loads(shipped.read_text())
        shipped.write_text(json.dumps({**runs, "runs": [row for row in runs["runs"] if row["id"] == "sc21_table1-001"]}))
        self.assertRegex(run([program, "plan", "--evidence"], cwd=self.folder), r"all +1 ")
        # None of our libraries comes from the build any more.
        used = run(["ldd", program]) + run(["ldd", self.prefix / "lib/liblockstep_runtime.so"])
        for path in re.findall(r"liblockstep\S+ => (\S+)", used):
            self.assertTrue(Path(path).resolve().is_relative_to(self.prefix.resolve()), used)

    def test_no_test_is_installed(self):
        headers = {path.relative_to(self.prefix / "include").as_posix() for path in (self.prefix / "include").rglob("*.*")}
        self.assertIn("lockstep/engine/executor.h", headers)
        self.assertEqual([header for header in headers if not header.endswith(".h") or "test" in header], [])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    BUILD_DIR = Path(sys.argv.pop(1)).resolve()
    unittest.main()
