"""Muon against torch.optim.Muon: values and momentum after each of three steps, from the same matrix and gradients.

    muon_reference_test.py PATH_OF_muon_dump

torch.optim.Muon iterates in bf16. For fp32 its own code runs with Tensor.bfloat16 replaced by a copy.
"""
import itertools
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import torch

# Of max |ours - theirs| / max |theirs|. Both make the same calls of one library.
BOUND = 1e-6
MUON_DUMP = ""
SHAPES = [(16, 16), (24, 64), (130, 7), (1, 33)]


def run_ours(shape, scale, nesterov, dtype):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([MUON_DUMP, folder, *map(str, shape), scale, str(int(nesterov)), dtype], check=True)
        index = json.loads((Path(folder) / "index.json").read_text())
        data = (Path(folder) / "data.bin").read_bytes()
    tensors = {}
    for entry in index:
        count = int(np.prod(entry["shape"]))
        values = np.frombuffer(data, dtype="<f4", count=count, offset=entry["offset"]).reshape(entry["shape"])
        tensors[entry["name"]] = torch.from_numpy(values.copy())
    return tensors


class MuonReference(unittest.TestCase):
    def expect_close(self, ours, theirs, what):
        error = ((ours - theirs).abs().max() / theirs.abs().max()).item()
        self.assertLessEqual(error, BOUND, what)

    def check(self, shape, scale, nesterov):
        ours = run_ours(shape, scale, nesterov, self.dtype)
        matrix = torch.nn.Parameter(ours["value/0"].clone())
        muon = torch.optim.Muon([matrix], lr=0.02, weight_decay=0.1, momentum=0.95, nesterov=nesterov, adjust_lr_fn=scale)
        for step in (1, 2, 3):
            matrix.grad = ours[f"grad/{step}"] * 0.5
            muon.step()
            what = f"step {step}, {shape}, {scale}, nesterov {nesterov}, {self.dtype}"
            self.expect_close(ours[f"momentum/{step}"], muon.state[matrix]["momentum_buffer"], "momentum of " + what)
            self.expect_close(ours[f"value/{step}"], matrix.detach(), "values of " + what)

    def check_all(self, dtype):
        self.dtype = dtype
        for shape, scale, nesterov in itertools.product(SHAPES, ("original", "match_rms_adamw"), (True, False)):
            with self.subTest(shape=shape, scale=scale, nesterov=nesterov):
                self.check(shape, scale, nesterov)

    def test_bf16(self):
        self.check_all("bf16")

    def test_fp32(self):
        with mock.patch.object(torch.Tensor, "bfloat16", lambda tensor: tensor.clone()):
            self.check_all("fp32")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    MUON_DUMP = sys.argv.pop(1)
    torch.set_num_threads(1)
    unittest.main()
