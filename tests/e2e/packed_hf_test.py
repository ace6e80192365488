"""Documents that share sequences, against Hugging Face transformers: loss, norm and every gradient of the first step, on one rank and on
ranks that hold sequences in parts. packed_hf_test.py BUILD_FOLDER

Gradients are read from the first moments of the first step's checkpoint, (1 - beta1) times the gradient of the mean loss."""
import json
import struct
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

import support

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import hf_reference_test  # noqa: E402  names of parameters there and here
import hf_start_test  # noqa: E402

SEQ, BATCH, BOUND = 32, 8, 1e-5
WINDOW = 12  # of mistral: shorter than a sequence, and than some documents
MODELS = {name: hf_start_test.MODELS[name] for name in ("gpt2", "qwen3", "mixtral", "deepseek_v3", "mistral")}
MODELS["mistral"] = transformers.MistralConfig(**{**MODELS["mistral"].to_dict(), "sliding_window": WINDOW})
STEP = ("--train.steps=1", "--optimizer.beta1=0.9", "--optimizer.max_grad_norm=0", "--data.shuffle=false")
EXPERTS = {"mixtral", "deepseek_v3"}  # whose auxiliary loss is off

# Of these, BATCH are longer than half a sequence, and all others fit beside them: BATCH sequences, however they are packed.
PACKED = (20, 1, 32, 12, 17, 2, 25, 9, 30, 7, 22, 1, 28, 3, 19)
# Of 1 token to more than two sequences; borders fall anywhere in the sequences of the stream.
STREAM = (7, 1, 12, 33, 1, 5, 80, 2, 16, 4, 31, 32, 6, 23, 9)


def write_documents(prefix, lengths):
    """A token file; returns the ids of each document."""
    rng = np.random.default_rng(5)
    documents = [rng.integers(1, 512, length) for length in lengths]
    ids = np.concatenate(documents).astype("<u2")
    Path(f"{prefix}.bin").write_bytes(ids.tobytes())
    offsets = np.cumsum([0, *lengths[:-1]]) * 2
    Path(f"{prefix}.idx").write_bytes(
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1) + np.array(lengths, "<i4").tobytes() +
        offsets.astype("<i8").tobytes() + np.arange(len(lengths) + 1, dtype="<i8").tobytes())
    return [torch.from_numpy(document.astype(np.int64)) for document in documents]


def summed_loss(logits, targets):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")


def each_alone(model, documents):
    """The mean loss of all tokens that have a next one in their document."""
    losses = [summed_loss(model(input_ids=ids[None, :-1]).logits, ids[None, 1:]) for ids in documents if len(ids) > 1]
    return sum(losses) / sum(len(ids) - 1 for ids in documents)


def block_mask(owners, window):
    """[B, S] numbers of documents -> [B, 1, S, S], 0 where a token is seen."""
    causal = torch.ones(SEQ, SEQ).tril().triu(1 - window).bool()
    seen = (owners[:, :, None] == owners[:, None, :]) & causal
    return torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[:, None]


def with_block_mask(model, documents, reset):
    """The mean loss of BATCH sequences of the stream; `reset`: positions count from where a document begins in its sequence."""
    tokens = torch.cat(documents)[:SEQ * BATCH + 1]
    owners = torch.cat([torch.full_like(ids, number) for number, ids in enumerate(documents)])[:SEQ * BATCH + 1]
    targets = torch.where(owners[1:] == owners[:-1], tokens[1:], -100).view(BATCH, SEQ)
    inputs, owners = (values[:-1].view(BATCH, SEQ) for values in (tokens, owners))
    places = torch.arange(SEQ).expand(BATCH, SEQ)
    first = (owners[:, :, None] == owners[:, None, :]).int().argmax(2)
    mask = block_mask(owners, getattr(model.config, "sliding_window", None) or SEQ)
    logits = model(input_ids=inputs, position_ids=places - first if reset else places, attention_mask=mask).logits
    return summed_loss(logits, targets) / (targets >= 0).sum()


class PackedTest(support.LockstepTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = {}
        for name in MODELS:
            hf_start_test.write_model(cls.folder / name, MODELS[name])
            model = transformers.AutoModelForCausalLM.from_pretrained(cls.folder / name, attn_implementation="eager")
            cls.models[name] = model.float().eval()
        text = support.CONFIG.replace('preset = "gpt2-test"\n', "").replace('train = "austen"\n', "")
        (cls.folder / "from.toml").write_text(text)
        cls.packed = write_documents(cls.folder / "packed", PACKED)
        cls.stream = write_documents(cls.folder / "stream", STREAM)

    def gradients(self, name):
        """Of the mean loss, by our names: the pieces of all ranks, each at its place."""
        whole, pieces = {}, []
        for path in sorted((self.step_folder(name, 1) / "optim").glob("*.safetensors")):
            data = path.read_bytes()
            (size,) = struct.unpack_from("<Q", data)
            header = json.loads(data[8:8 + size])
            places = json.loads(header["__metadata__"]["DCP_SHARDING_INFO"])
            for key, entry in header.items():
                if key.startswith("optim.exp_avg."):
                    begin, end = entry["data_offsets"]
                    values = np.frombuffer(data[8 + size + begin:8 + size + end], "<f4").reshape(entry["shape"])
                    pieces.append((key.removeprefix("optim.exp_avg."), places[key]["saved_offsets"], torch.from_numpy(values.copy())))
        for key, offsets, values in pieces:
            shape = [offset + size for offset, size in zip(offsets, values.shape)]
            seen = whole.get(key, torch.zeros([0] * len(shape)))
            grown = torch.full([max(pair) for pair in zip(shape, seen.shape)], float("nan"))
            grown[tuple(slice(size) for size in seen.shape)] = seen
            grown[tuple(slice(offset, end) for offset, end in zip(offsets, shape))] = values
            whole[key] = grown
        return {f"{prefix}{key}": values / 0.1 for key, values in whole.items() for prefix in ("value/", "grad/")}

    def check(self, name, model, loss, *arguments, ranks=1):
        """A first step under `arguments` against a loss of transformers."""
        theirs = self.models[model]
        theirs.zero_grad()
        loss.backward(retain_graph=True)
        self.do("train", "from.toml", f"--model.from=hf:{model}", f"--run.name={name}", "-n", ranks, *STEP,
                *(["--moe.balance=none"] if model in EXPERTS else []), *arguments)
        norm = torch.sqrt(sum(parameter.grad.square().sum() for parameter in theirs.parameters())).item()
        row = self.metrics(name)[0][0]
        self.assert_close({"loss": row["train/loss"], "norm": row["train/grad_norm"]}, {"loss": loss.item(), "norm": norm}, BOUND)
        ours = self.gradients(name)
        for parameter, value in theirs.named_parameters():
            found = hf_reference_test.in_their_form(ours, "grad/", parameter, value.shape)
            error = ((found - value.grad).abs().max() / value.grad.abs().max()).item()
            self.assertLessEqual(error, BOUND, f"{name}: gradient of {parameter}")

    def test_sequences_of_whole_documents_are_as_each_document_alone(self):
        for model in MODELS:
            with self.subTest(model):
                self.check(f"{model}-packed", model, each_alone(self.models[model], self.packed), "--data.train=packed",
                           "--data.pack=documents")

    def test_a_stream_of_documents_is_as_a_block_mask(self):
        for model in MODELS:
            for reset in (True, False):
                with self.subTest(model, reset=reset):
                    self.check(f"{model}-stream-{reset}", model, with_block_mask(self.models[model], self.stream, reset),
                               "--data.train=stream", "--data.document_mask=true", f"--data.reset_positions={str(reset).lower()}")

    def test_over_ranks_that_hold_sequences_in_parts(self):
        for model, ranks, kind, split in (("qwen3", 2, "ring", "zigzag"), ("gpt2", 2, "all_to_all", "zigzag"),
                                          ("qwen3", 4, "all_gather", "contiguous"), ("deepseek_v3", 2, "ring", "zigzag"),
                                          ("mixtral", 4, "2d", "zigzag"), ("mistral", 4, "ring", "zigzag"),
                                          ("mistral", 2, "all_gather", "contiguous")):
            with self.subTest(model, kind=kind):
                context = [f"--parallel.cp={ranks}", f"--parallel.context={kind}", f"--parallel.context_split={split}"]
                if kind == "2d":
                    context.append("--parallel.context_inner=2")
                self.check(f"{model}-{kind}-packed", model, each_alone(self.models[model], self.packed), "--data.train=packed",
                           "--data.pack=documents", *context, ranks=ranks)
                self.check(f"{model}-{kind}-stream", model, with_block_mask(self.models[model], self.stream, True),
                           "--data.train=stream", "--data.document_mask=true", *context, ranks=ranks)

    def test_the_reference_itself(self):
        """A block mask of transformers is what its documents alone are: whole documents, one behind the other."""
        lengths = (3, 1, 20, 8)
        documents = [ids for number in range(BATCH) for ids in
                     write_documents(self.folder / "whole", lengths)] + [torch.tensor([1])]
        for model in MODELS:
            with torch.no_grad():
                masked = with_block_mask(self.models[model], documents, True)
                alone = each_alone(self.models[model], documents)
            self.assertLessEqual(abs(masked - alone).item(), BOUND * alone.item(), model)


if __name__ == "__main__":
    torch.set_num_threads(1)
    support.main()
