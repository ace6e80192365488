"""Everything that only a build with the preset cuda compiles, compiled: the kernels by nvcc, the NCCL plugin by g++.

    cuda_compile_test.py SOURCE_DIR TORCH_DIR BUILD_DIR

Needs no GPU. nvcc, the CUDA headers and NCCL come from the packages of scripts/requirements.txt, the headers of LibTorch from
TORCH_DIR, which may be a CPU build: what it lacks is libraries. What the objects want from NCCL and CUDA is looked up in the
libraries; that the kernels compute what they should is for tests/emulation, which runs them on the CPU, and for a GPU.
"""
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE_DIR, TORCH_DIR, BUILD_DIR = Path(), Path(), Path()
FLAGS = ["-std=c++20", "-O2", "-DAT_PER_OPERATOR_HEADERS"]


def packaged(path):
    """A file or folder of the packages that this Python sees, below "nvidia"."""
    import nvidia

    for folder in nvidia.__path__:
        if (Path(folder) / path).exists():
            return Path(folder) / path
    raise FileNotFoundError(f"no {path} among the packages of {sys.executable}: run scripts/setup.sh")


def write_generated_header(folder):
    """What a CUDA build of LibTorch generates and a CPU build has not."""
    if not (TORCH_DIR / "include/c10/cuda/impl/cuda_cmake_macros.h").exists():
        place = folder / "c10/cuda/impl/cuda_cmake_macros.h"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("#define C10_CUDA_BUILD_SHARED_LIBS\n")


def symbols(file, *options):
    listed = subprocess.run(["nm", *options, str(file)], check=True, capture_output=True, text=True).stdout
    return {re.sub(r"@.*", "", line.split()[-1]) for line in listed.splitlines() if line.strip()}


class Compile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        # Always in the same place, for the compiler cache.
        cls.generated = BUILD_DIR / "cuda_compile_test"
        write_generated_header(cls.generated)
        cls.includes = [cls.generated, TORCH_DIR / "include", packaged("cu13/include"), packaged("nccl/include")]
        cls.cudart, cls.libnccl = packaged("cu13/lib/libcudart.so.13"), packaged("nccl/lib/libnccl.so.2")

    def compile(self, compiler, source, *options):
        """The object of a source."""
        output = self.folder / (source.replace("/", "_") + ".o")
        includes = [f"-I{SOURCE_DIR}"] + [word for place in self.includes for word in ("-isystem", str(place))]
        ccache = [shutil.which("ccache")] if shutil.which("ccache") else []
        command = [*ccache, *compiler, *FLAGS, *options, *includes, "-c", str(SOURCE_DIR / source), "-o", str(output)]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        return output

    def kernels(self, source):
        warnings = ["-Werror", "all-warnings", "-Xcompiler", "-Wall"]
        return self.compile([str(packaged("cu13/bin/nvcc"))], f"lockstep/nn/cuda/{source}", "-arch=sm_90", *warnings)

    def wanted(self, output, prefix, library):
        """Names that begin with `prefix` and are not in the library that should have them."""
        needed = {name for name in symbols(output, "-u") if name.startswith(prefix)}
        self.assertTrue(needed, f"{output} uses nothing of {library}")
        self.assertEqual(needed - symbols(library, "-D", "--defined-only"), set())

    def test_every_kernel_file_has_its_test(self):
        files = {path.stem for path in (SOURCE_DIR / "lockstep/nn/cuda").glob("*.cu")}
        self.assertEqual(files, {name.removeprefix("test_kernels_") for name in dir(self) if name.startswith("test_kernels_")})

    def test_kernels_pointwise(self):
        self.wanted(self.kernels("pointwise.cu"), "cuda", self.cudart)

    def test_kernels_norm(self):
        self.kernels("norm.cu")

    def test_kernels_cross_entropy(self):
        self.kernels("cross_entropy.cu")

    def test_kernels_adamw(self):
        self.kernels("adamw.cu")

    def test_kernels_nonfinite(self):
        self.kernels("nonfinite.cu")

    def test_kernels_dropout(self):
        self.kernels("dropout.cu")

    def test_kernels_tensors(self):
        self.kernels("tensors.cu")

    def test_kernels_convolution(self):
        self.kernels("convolution.cu")

    def test_kernels_scan(self):
        self.kernels("scan.cu")

    def test_kernels_scan_backward(self):
        self.kernels("scan_backward.cu")

    def test_kernels_state_space_tensors(self):
        self.kernels("state_space_tensors.cu")

    def test_nccl_plugin(self):
        output = self.compile(["g++"], "lockstep/comm/nccl_plugin.cpp", "-fPIC", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
        self.wanted(output, "nccl", self.libnccl)
        self.wanted(output, "cuda", self.cudart)
        self.assertIn("lockstep_nccl_api", symbols(output, "--defined-only"))


if __name__ == "__main__":
    SOURCE_DIR, TORCH_DIR, BUILD_DIR = (Path(place).resolve() for place in sys.argv[1:4])
    unittest.main(argv=sys.argv[:1] + sys.argv[4:], verbosity=2)
