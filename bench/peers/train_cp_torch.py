"""Trains a PyTorch twin of a Lockstep model whose ranks each hold a part of every sequence, over Gloo on loopback.

Prints what train_torch.py prints. torch.distributed.tensor.experimental.context_parallel does not run on CPUs: it dispatches the flash,
efficient and cuDNN kernels of GPUs alone. In PyTorch 2.13 F.scaled_dot_product_attention within it ends on a CPU with

    NotImplementedError: Operator aten._scaled_dot_product_flash_attention_for_cpu.default does not have a sharding strategy registered.

and under SDPBackend.MATH with "aten.add.Tensor got mixed torch.Tensor and DTensor" (--context-parallel shows it). So this is what one
writes by hand: zigzag pieces, keys and values gathered (Llama 3, Grattafiori et al. 2024), PyTorch's own flash kernel for CPUs on what each
piece sees, merged by log-sum-exp; gradients of keys and values by reduce-scatter; DistributedDataParallel for the parameters.
"""

import argparse
import json
import os
import sys
from functools import partial
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from models import Transformer
from shapes import SHAPES
from train_torch import batches, free_port, stepper

flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="llama-long")
    parser.add_argument("--tokens", required=True, help="file of 16-bit token ids (a Megatron .bin)")
    parser.add_argument("--batch", type=int, default=1, help="sequences of a step; every rank holds a part of each")
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of one rank")
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="timed steps after the warm-up")
    parser.add_argument("--context-parallel", action="store_true", help="try context_parallel on one small attention, and end")
    arguments = parser.parse_args()
    arguments.device, arguments.precision = "cpu", "fp32"
    shape = SHAPES[arguments.model]
    if arguments.seq_len % (2 * arguments.ranks) != 0:
        parser.error(f"--seq-len {arguments.seq_len} does not divide into {2 * arguments.ranks} pieces")
    if shape.family == "gpt2" or shape.kv_heads not in (0, shape.heads):
        parser.error(f"--model {arguments.model}: rotary positions and as many key/value heads as heads are needed")
    return arguments


def pieces(rank, ranks):
    """Of 2 x ranks pieces the two that a rank holds: an early one and a late one, with equal work."""
    return rank, 2 * ranks - 1 - rank


def own(whole, rank, ranks, dim):
    return torch.cat([whole.chunk(2 * ranks, dim)[piece] for piece in pieces(rank, ranks)], dim)


def in_order(parts, ranks, dim):
    """Of all ranks' own parts the whole."""
    halves = [part.chunk(2, dim) for part in parts]
    return torch.cat([halves[rank][0] for rank in range(ranks)] + [halves[rank][1] for rank in reversed(range(ranks))], dim)


class GatheredAttention(torch.autograd.Function):
    """[B, H, 2 c, K] of q, k and v here -> the output of these queries, which see all keys up to them."""

    @staticmethod
    def forward(ctx, q, k, v, rank, ranks):
        ctx.rank, ctx.ranks, size = rank, ranks, q.shape[2] // 2
        k, v = gathered(k, v, ranks)
        outputs, sums = [], []
        for piece, queries in zip(pieces(rank, ranks), q.split(size, 2)):
            begin, end = piece * size, (piece + 1) * size
            output, lse = flash(queries, k[:, :, begin:end], v[:, :, begin:end], 0.0, True)
            if piece > 0:
                before, lse_before = flash(queries, k[:, :, :begin], v[:, :, :begin], 0.0, False)
                both = torch.logaddexp(lse, lse_before)
                output = output * (lse - both).exp().unsqueeze(-1) + before * (lse_before - both).exp().unsqueeze(-1)
                lse = both
            outputs.append(output)
            sums.append(lse)
        ctx.save_for_backward(q, k, v, *outputs, *sums)
        return torch.cat(outputs, 2)

    @staticmethod
    def backward(ctx, gradient):
        q, k, v, *rest = ctx.saved_tensors
        size, dk, dv, dq = q.shape[2] // 2, torch.zeros_like(k), torch.zeros_like(v), []
        parts = zip(pieces(ctx.rank, ctx.ranks), q.split(size, 2), gradient.split(size, 2), rest[:2], rest[2:])
        for piece, queries, upstream, output, lse in parts:
            begin, end = piece * size, (piece + 1) * size
            found = None
            for first, last, causal in ((begin, end, True), (0, begin, False)):
                if first == last:
                    continue
                keys, values = k[:, :, first:last], v[:, :, first:last]
                more, more_k, more_v = flash_backward(upstream, queries, keys, values, output, lse, 0.0, causal)
                found = more if found is None else found + more
                dk[:, :, first:last] += more_k
                dv[:, :, first:last] += more_v
            dq.append(found)
        dk, dv = scattered(dk, dv, ctx.ranks)
        return torch.cat(dq, 2), dk, dv, None, None


def gathered(k, v, ranks):
    both = torch.stack((k, v))
    parts = torch.empty(ranks, *both.shape, dtype=both.dtype)
    dist.all_gather_single(parts.flatten(0, 1), both)
    return in_order(parts.unbind(0), ranks, 3).unbind(0)


def scattered(dk, dv, ranks):
    whole = torch.stack((dk, dv))
    parts = torch.stack([own(whole, rank, ranks, 3) for rank in range(ranks)])
    mine = torch.empty_like(parts[0])
    dist.reduce_scatter_single(mine, parts.flatten(0, 1))
    return mine.unbind(0)


class SplitTransformer(Transformer):
    """As Transformer, on this rank's tokens; the mean over the ranks of its losses is the loss."""

    def split(self, rank, ranks):
        self.here = partial(own, rank=rank, ranks=ranks, dim=0)
        for block in self.blocks:
            block.attention.attend = lambda q, k, v: GatheredAttention.apply(q, k, v, rank, ranks)
        return self

    def forward(self, tokens, targets):
        length = tokens.shape[1] * dist.get_world_size()
        x = self.tokens(tokens)
        rotary = self.here(self.cos[:length]), self.here(self.sin[:length])
        for block in self.blocks:
            x = block(x, rotary)
        return self.loss_of(x, targets)


def own_batches(arguments, rank):
    """The same sequences on all ranks, and of them this rank's pieces."""
    reads = SimpleNamespace(tokens=arguments.tokens, batch=arguments.batch, ranks=1, seq_len=arguments.seq_len)
    for tokens, targets in batches(reads, 0):
        yield own(tokens, rank, arguments.ranks, 1), own(targets, rank, arguments.ranks, 1)


def try_context_parallel(rank, arguments, port):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel

    begin(rank, arguments, port)
    mesh = init_device_mesh("cpu", (arguments.ranks,))
    q, k, v = (torch.randn(1, 4, 64, 16) for _ in range(3))
    with context_parallel(mesh, buffers=[q, k, v], buffer_seq_dims=[2, 2, 2]):
        F.scaled_dot_product_attention(q, k, v, is_causal=True)


def begin(rank, arguments, port):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=arguments.ranks)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1234)


def train(rank, arguments, port):
    begin(rank, arguments, port)
    model = SplitTransformer(SHAPES[arguments.model]).split(rank, arguments.ranks)
    run = DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True)
    step = stepper(arguments, rank, model, run, own_batches(arguments, rank))
    rows = [step() for _ in range(arguments.warmup + arguments.steps)]
    losses = torch.tensor([row["loss"] for row in rows])
    dist.all_reduce(losses)
    if rank == 0:
        timed = rows[arguments.warmup :]
        report = {
            "step_seconds": [row["seconds"] for row in timed],
            "step_faults": [row["faults"] for row in timed],
            "first_step_begin": rows[0]["begin"],  # seconds since 1970
            "losses": (losses / arguments.ranks).tolist(),
            "parameters": sum(p.numel() for p in model.parameters()),
            "torch": torch.__version__,
        }
        print(json.dumps(report), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # Gloo's threads sometimes abort a process that ends the usual way


def main():
    arguments = parse_arguments()
    what = try_context_parallel if arguments.context_parallel else train
    torch.multiprocessing.spawn(what, (arguments, free_port()), nprocs=arguments.ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
