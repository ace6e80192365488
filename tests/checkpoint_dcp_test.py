"""PyTorch and the safetensors package open what Lockstep writes. Usage: checkpoint_dcp_test.py CHECKPOINT_WRITE

CHECKPOINT_WRITE is the program built from checkpoint_write.cpp.
"""

import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unittest
import warnings

import safetensors
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp

PROGRAM = None


def numbers(first, shape):
    size = torch.Size(shape).numel()
    return torch.arange(first, first + size, dtype=torch.float32).reshape(shape)


MODEL = {
    "embed.weight": numbers(0, (10, 6)),
    "mlp.weight": numbers(0, (5, 7)).bfloat16(),
    "norm.weight": numbers(7, (3,)),
    "scale": numbers(9, ()),
}
OPTIM = {
    "optim.master.mlp.weight": numbers(1000, (5, 7)),
    "optim.exp_avg.embed.weight": numbers(2000, (10, 6)),
    "optim.exp_avg_sq.mlp.weight": numbers(3000, (5, 7)),
}


class CheckpointTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.scratch.name)
        subprocess.run([PROGRAM, str(cls.folder)], check=True, timeout=120)
        cls.step = cls.folder / "checkpoints" / "step-00000012"

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def check_with_dcp(self, folder, expected):
        loaded = {name: torch.full_like(value, -1) for name, value in expected.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.load(loaded, storage_reader=dcp.HuggingFaceStorageReader(str(folder)), no_dist=True)
        for name, value in expected.items():
            self.assertTrue(torch.equal(loaded[name], value), name)

    def test_distributed_checkpoint_loads_the_parameters(self):
        self.check_with_dcp(self.step / "model", MODEL)

    def test_distributed_checkpoint_loads_the_optimizer(self):
        self.check_with_dcp(self.step / "optim", OPTIM)

    def test_distributed_checkpoint_converts_the_dtype(self):
        loaded = {"mlp.weight": torch.zeros(5, 7, dtype=torch.float32)}
        dcp.load(loaded, storage_reader=dcp.HuggingFaceStorageReader(str(self.step / "model")), no_dist=True)
        self.assertTrue(torch.equal(loaded["mlp.weight"], MODEL["mlp.weight"].float()))

    def test_safetensors_opens_every_file_and_the_pieces_are_disjoint(self):
        elements = {}
        files = sorted(self.step.glob("*/*.safetensors"))
        self.assertEqual(len(files), 8)
        for path in files:
            with safetensors.safe_open(path, "pt") as file:
                metadata = file.metadata()
                self.assertEqual(metadata["format"], "pt")
                offsets = json.loads(metadata["DCP_SHARDING_INFO"])
                self.assertEqual(sorted(offsets), sorted(file.keys()))
                for name in file.keys():
                    piece = file.get_tensor(name)
                    self.assertEqual(len(offsets[name]["saved_offsets"]), piece.dim())
                    self.assertGreater(piece.numel(), 0)
                    elements[name] = elements.get(name, 0) + piece.numel()
        self.assertEqual(elements, {name: value.numel() for name, value in (MODEL | OPTIM).items()})

    def test_the_writer_gives_the_reference_bytes(self):
        path = self.folder / "dtypes.safetensors"
        tensors = safetensors.torch.load_file(path)
        self.assertEqual(len(tensors), 16)
        for name, value in tensors.items():
            if name.startswith("t."):
                self.assertTrue(torch.equal(value, numbers(0, (2, 3)).to(value.dtype)), name)
        self.assertEqual(safetensors.torch.save(tensors, {"format": "pt"}), path.read_bytes())

    def test_whatever_we_accept_the_reference_reader_accepts(self):
        folder = self.folder / "mutants"
        folder.mkdir()
        for i, content in enumerate(mutants(1500)):
            (folder / f"{i:05}.safetensors").write_bytes(content)
        output = subprocess.run([PROGRAM, "--read", str(folder)], check=True, timeout=120, capture_output=True, text=True).stdout
        accepted = 0
        for line in output.splitlines():
            name, *tensors = line.split(" ")
            if tensors == ["refused"]:
                continue
            accepted += 1
            with safetensors.safe_open(folder / name, "np") as file:
                self.assertEqual(sorted(file.keys()), [t.split(":")[0] for t in tensors], name)
                for tensor in tensors:
                    key, dtype, begin, end = tensor.split(":")
                    self.assertEqual(file.get_slice(key).get_dtype(), dtype)
        self.assertGreater(accepted, 50)
        self.assertLess(accepted, 1400)


def mutants(count):
    """A valid file, with bytes of its header changed, removed, doubled, or its offsets and sizes replaced."""
    header = json.dumps({"__metadata__": {"format": "pt"},
                         "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
                         "b": {"dtype": "U8", "shape": [3], "data_offsets": [16, 19]},
                         "c": {"dtype": "F16", "shape": [], "data_offsets": [19, 21]}}, separators=(",", ":"))
    numbers = ["0", "1", "2", "3", "16", "19", "21", "-1", "1.0", "1e1", "18446744073709551615", "18446744073709551616", "null"]
    chooser = random.Random(1)
    for _ in range(count):
        text = bytearray(header.encode())
        for _ in range(chooser.randint(0, 2)):
            at = chooser.randrange(len(text))
            change = chooser.randrange(5)
            if change == 0:
                text[at] = chooser.randrange(256)
            elif change == 1:
                del text[at]
            elif change == 2:
                text.insert(at, text[at])
            elif change == 3:
                text[at:at] = chooser.choice([b" ", b"\n", b"\0", b"[", b"{}", b'"'])
            else:
                digits = [i for i, byte in enumerate(text) if chr(byte).isdigit()]
                at = chooser.choice(digits)
                text[at:at + 1] = chooser.choice(numbers).encode()
        data = bytes(21 + chooser.choice([0, 0, 0, 0, 0, 0, 1, -1]))
        yield struct.pack("<Q", len(text) + chooser.choice([0] * 20 + [1, -1, 2**32, 2**63])) + bytes(text) + data


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
