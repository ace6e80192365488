#!/usr/bin/env python3
"""Runs the tests of a build and names the slowest: run_tests.py BUILD [--check] [ctest's flags...]

Without --check those that carry the label "check" are left out: sanitizers, the largest matrices, long fuzzing.

oneDNN computes with AVX-512's bf16 at most: what it packs beside a bf16 product, which tests of memory hold against the prediction to 5 %,
is another size on a processor with AMX (lockstep/arch/layer_builder.h, product_scratch).
"""
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

SLOWEST = 10


def slowest(junit):
    """Lines "  12.3 s  name" of the tests that took longest."""
    cases = [(float(case.get("time", 0)), case.get("name")) for case in ElementTree.parse(junit).getroot().iter("testcase")]
    return [f"{seconds:8.1f} s  {name}" for seconds, name in sorted(cases, reverse=True)[:SLOWEST]]


def main(build, *words):
    everything = "--check" in words
    results = Path(build).resolve() / "tests.xml"
    results.unlink(missing_ok=True)
    command = ["ctest", "--test-dir", build, "--output-on-failure", "--parallel", str(os.cpu_count()), "--output-junit", results,
               *([] if everything else ["--label-exclude", "^check$"]), *(word for word in words if word != "--check")]
    code = subprocess.run(command, env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}).returncode
    if results.exists():
        print(f"\nThe {SLOWEST} slowest:", *slowest(results), sep="\n")
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
