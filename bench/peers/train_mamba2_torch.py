"""Trains a PyTorch twin of Lockstep's Mamba-2 on one rank; prints what train_torch.py prints.

--how eager | compile: mamba2.py, as it is and compiled. --how transformers: Mamba2ForCausalLM, by its path for CPUs.
--check holds the scan in chunks against the recurrence, token by token in fp64, and the model against transformers', and ends.
"""

import argparse
import json
import sys

import torch
import torch.nn.functional as F
from torch import nn

import mamba2
from shapes import STATE_SPACES
from train_torch import stepper


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=STATE_SPACES, default="mamba2-130m")
    parser.add_argument("--tokens", help="file of 16-bit token ids (a Megatron .bin)")
    parser.add_argument("--batch", type=int, default=1, help="sequences of a step")
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--how", choices=("eager", "compile", "transformers"), default="eager")
    parser.add_argument("--chunk", type=int, default=64, help="tokens of a chunk of the scan; 64 is the fastest in PyTorch on CPUs")
    parser.add_argument("--layers", type=int, help="instead of the model's, to try something")
    parser.add_argument("--ranks", type=int, choices=(1,), default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="timed steps after the warm-up")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    arguments.device, arguments.precision = "cpu", "fp32"
    if not arguments.check and not arguments.tokens:
        parser.error("--tokens FILE is needed")
    if arguments.seq_len % min(arguments.chunk, arguments.seq_len) != 0:
        parser.error(f"--seq-len {arguments.seq_len} is no multiple of --chunk {arguments.chunk}")
    return arguments


class Theirs(nn.Module):
    """transformers' model with the loss of the twin."""

    def __init__(self, shape):
        super().__init__()
        import transformers

        config = transformers.Mamba2Config(
            vocab_size=shape.vocab_size, hidden_size=shape.hidden, num_hidden_layers=shape.layers, num_heads=shape.heads,
            head_dim=shape.head_size, state_size=shape.state, n_groups=shape.groups, conv_kernel=shape.convolution, expand=shape.inner() // shape.hidden,
            chunk_size=shape.chunk, tie_word_embeddings=True, initializer_range=0.02, bos_token_id=None, eos_token_id=None, pad_token_id=None,
        )
        self.model = transformers.AutoModelForCausalLM.from_config(config)

    def forward(self, tokens, targets):
        logits = self.model(input_ids=tokens, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def model_of(arguments, shape):
    return Theirs(shape) if arguments.how == "transformers" else mamba2.Mamba2(shape, arguments.chunk)


def train(arguments):
    model = model_of(arguments, STATE_SPACES[arguments.model].with_layers(arguments.layers))
    run = torch.compile(model, dynamic=False) if arguments.how == "compile" else model
    step = stepper(arguments, 0, model, run)
    rows = [step() for _ in range(arguments.warmup + arguments.steps)]
    timed = rows[arguments.warmup :]
    report = {
        "step_seconds": [row["seconds"] for row in timed],
        "step_faults": [row["faults"] for row in timed],
        "first_step_begin": rows[0]["begin"],  # seconds since 1970
        "loss": rows[-1]["loss"],
        "parameters": sum(p.numel() for p in model.parameters()),
        "torch": torch.__version__,
    }
    print(json.dumps(report), flush=True)


def error(found, expected):
    return ((found - expected).abs().max() / expected.abs().max()).item()


def check_scan():
    x, b, c = (torch.randn(2, 24, *size, dtype=torch.float64) for size in ((4, 5), (2, 3), (2, 3)))
    delta, a = torch.rand(2, 24, 4, dtype=torch.float64), -torch.rand(4, dtype=torch.float64)
    state, expected = torch.zeros(2, 4, 5, 3, dtype=torch.float64), []
    for t in range(24):
        own_b, own_c = (part[:, t].repeat_interleave(2, 1) for part in (b, c))
        state = state * (delta[:, t] * a).exp()[..., None, None] + (delta[:, t, :, None] * x[:, t])[..., None] * own_b[:, :, None, :]
        expected.append((state @ own_c.unsqueeze(-1)).squeeze(-1))
    return max(error(mamba2.scan(x, delta, a, b, c, chunk), torch.stack(expected, 1)) for chunk in (1, 4, 8, 24))


def check_model():
    """Loss and gradient of the embedding, from transformers' parameters."""
    shape = STATE_SPACES["mamba2-test"]
    ours, theirs = mamba2.Mamba2(shape, 8), Theirs(shape).eval()
    body = theirs.model.backbone
    with torch.no_grad():
        ours.tokens.weight.copy_(body.embeddings.weight)
        for block, layer in zip(ours.blocks, body.layers):
            for mine, their in zip(block.mixer.parameters(), (
                    layer.mixer.dt_bias, layer.mixer.A_log, layer.mixer.D, layer.mixer.in_proj.weight, layer.mixer.conv1d.weight,
                    layer.mixer.conv1d.bias, layer.mixer.norm.weight, layer.mixer.out_proj.weight), strict=True):
                mine.copy_(their)
    tokens = torch.randint(shape.vocab_size, (2, 33))
    losses = [model(tokens[:, :-1], tokens[:, 1:]) for model in (ours, theirs)]
    for loss in losses:
        loss.backward()
    return max(error(losses[0], losses[1]), error(ours.tokens.weight.grad, body.embeddings.weight.grad))


def main():
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1234)
    if not arguments.check:
        train(arguments)
        return 0
    found = {"scan": check_scan(), "model": check_model()}
    print(json.dumps(found))
    return 0 if max(found.values()) < 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
