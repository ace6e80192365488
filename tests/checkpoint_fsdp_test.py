"""PyTorch reads a checkpoint of sharded ranks into an FSDP mesh. Usage: checkpoint_fsdp_test.py CHECKPOINT_WRITE

Two Gloo ranks, each with its shards of a model under fully_shard, load what CHECKPOINT_WRITE --zero wrote as other
numbers of ranks with other cuts. The mesh cuts parameters along dim 0 in equal rows, Lockstep inside rows."""

import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import unittest
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

PROGRAM = None
RANKS = 2
KINDS = ("", "optim.exp_avg.", "optim.exp_avg_sq.")


def numbers(row, kind, shape):
    """Of parameter `row` of the table that CHECKPOINT_WRITE prints."""
    first = 10000 * row + 1000000 * KINDS.index(kind)
    return torch.arange(first, first + torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


def module_of(shapes):
    """Modules within modules, so that each parameter has its name."""
    root = torch.nn.Module()
    for name, shape in shapes.items():
        *path, last = name.split(".")
        module = root
        for part in path:
            if not hasattr(module, part):
                module.add_module(part, torch.nn.Module())
            module = getattr(module, part)
        module.register_parameter(last, torch.nn.Parameter(torch.full(shape, -1.0)))
    return root


def load(tensors, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(tensors, storage_reader=dcp.HuggingFaceStorageReader(str(folder)))


def check(loaded, kind, shapes):
    for row, (name, shape) in enumerate(shapes.items()):
        tensor = loaded[kind + name]
        assert isinstance(tensor, DTensor) and tensor.placements == (Shard(0),), f"{kind}{name} is not sharded"
        assert torch.equal(tensor.full_tensor(), numbers(row, kind, shape)), f"{kind}{name}: {tensor.full_tensor()}"


def run(rank, port, step, shapes):
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    model = module_of(shapes)
    fully_shard(model.blocks.get_submodule("0"), mesh=mesh)
    fully_shard(model, mesh=mesh)
    state = model.state_dict()
    load(state, pathlib.Path(step) / "model")
    model.load_state_dict(state)
    check(model.state_dict(), "", shapes)
    for kind in KINDS[1:]:
        moments = {kind + name: distribute_tensor(torch.zeros(shape), mesh, [Shard(0)]) for name, shape in shapes.items()}
        load(moments, pathlib.Path(step) / "optim")
        check(moments, kind, shapes)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # PyTorch's threads of Gloo sometimes abort a process that ends the usual way


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class FsdpTest(unittest.TestCase):
    def check_ranks(self, shards, tp):
        with tempfile.TemporaryDirectory() as folder:
            command = [PROGRAM, "--zero", folder, str(shards), str(tp)]
            table = subprocess.run(command, check=True, timeout=120, capture_output=True, text=True).stdout
            rows = [line.split() for line in table.splitlines()]
            shapes = {name: tuple(map(int, sizes)) for name, *sizes in rows}
            step = pathlib.Path(folder) / "checkpoints" / "step-00000012"
            self.assertGreater(len(list((step / "model").iterdir())), shards * tp, "some rank has several pieces of a tensor")
            torch.multiprocessing.spawn(run, (free_port(), str(step), shapes), nprocs=RANKS)

    def test_zero_over_three_ranks(self):
        self.check_ranks(3, 1)

    def test_zero_over_two_ranks_and_tp(self):
        self.check_ranks(2, 2)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
