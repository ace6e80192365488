"""Families whose layers differ, or keep several parameters in one tensor, against Hugging Face transformers: logits, loss, every gradient,
one AdamW step, greedy text, and the way back. families_test.py BUILD_FOLDER

Each model has every kind of layer of its family; windows and chunks are shorter than the text, state spaces have two groups.
"""
import os
import sys
from pathlib import Path

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import numpy as np
import torch
import transformers

import support

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import hf_reference_test  # noqa: E402
import packed_hf_test  # noqa: E402

SEQ, BATCH, BOUND, WINDOW, COUNT = 32, 8, 1e-5, 9, 12
LR, EPS = 1e-3, 1e-3  # a large epsilon: gradients that are zero but for rounding are not steps of full size
PROMPTS = [[5, 6, 7], list(range(30, 50))]

ENDS = {"vocab_size": 512, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SIZES = {**ENDS, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48,
         "max_position_embeddings": 64}
HYBRID = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_d_state": 6, "mamba_chunk_size": 8}
MULTIPLIERS = {"embedding_multiplier": 3.5, "lm_head_multiplier": 0.4, "attention_in_multiplier": 1.5, "key_multiplier": 0.6,
               "attention_out_multiplier": 0.9, "ssm_in_multiplier": 1.25, "ssm_multipliers": [0.7, 0.8, 1.2, 0.5, 0.9],
               "ssm_out_multiplier": 0.3, "mlp_multipliers": [0.8, 0.6]}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 4.0, "beta_slow": 1.0}


def without(values, *keys):
    return {key: value for key, value in values.items() if key not in keys}


def neox(**more):
    return transformers.GPTNeoXConfig(**without(SIZES, "num_key_value_heads"), rope_parameters={
        "rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5}, **more)


def by_kind(full, sliding):
    return {"full_attention": full, "sliding_attention": sliding}


def plain(theta):
    return {"rope_type": "default", "rope_theta": theta}


CONFIGS = {
    "gpt_neox": lambda: neox(),
    "gpt_neox, sequential": lambda: neox(use_parallel_residual=False, attention_bias=False, tie_word_embeddings=True),
    "phi3": lambda: transformers.Phi3Config(**SIZES, sliding_window=WINDOW, partial_rotary_factor=0.5),
    "olmo2": lambda: transformers.Olmo2Config(**SIZES),
    "olmo3": lambda: transformers.Olmo3Config(**SIZES, sliding_window=WINDOW, rope_parameters=by_kind(YARN, plain(500.0))),
    "smollm3": lambda: transformers.SmolLM3Config(**SIZES, use_sliding_window=True, sliding_window=WINDOW, no_rope_layers=[1, 0, 1, 0],
                                                  layer_types=["sliding_attention", "sliding_attention", "full_attention", "full_attention"]),
    "gemma3_text": lambda: transformers.Gemma3TextConfig(**SIZES, head_dim=12, sliding_window=WINDOW, query_pre_attn_scalar=20,
                                                         layer_types=["sliding_attention", "full_attention"] * 2,
                                                         rope_parameters=by_kind(plain(5000.0), plain(100.0))),
    "mamba2": lambda: transformers.Mamba2Config(**ENDS, num_heads=8, head_dim=8, hidden_size=32, state_size=6, num_hidden_layers=3,
                                                n_groups=2, chunk_size=8, time_step_limit=(0.002, 0.5)),
    "mamba2 with biases": lambda: transformers.Mamba2Config(**ENDS, num_heads=4, head_dim=16, hidden_size=32, state_size=5, num_hidden_layers=2,
                                                            n_groups=1, chunk_size=8, use_bias=True, use_conv_bias=False,
                                                            tie_word_embeddings=True),
    "bamba": lambda: transformers.BambaConfig(**SIZES, attn_layer_indices=[1], **HYBRID),
    "nemotron_h": lambda: transformers.NemotronHConfig(
        **without(SIZES, "num_hidden_layers"), layers_block_type=["linear_attention", "mlp", "full_attention", "linear_attention"], head_dim=12,
        mamba_num_heads=6, mamba_head_dim=8, n_groups=2, ssm_state_size=6, chunk_size=8),
    "falcon_h1": lambda: transformers.FalconH1Config(**SIZES, **HYBRID, mamba_d_ssm=64, **MULTIPLIERS),
    "falcon_h1 with norms": lambda: transformers.FalconH1Config(**SIZES, **HYBRID, mamba_d_ssm=64, mamba_rms_norm=True,
                                                                mamba_norm_before_gate=False, tie_word_embeddings=True),
    "gpt_oss": lambda: transformers.GptOssConfig(**SIZES, head_dim=12, sliding_window=WINDOW, num_local_experts=5, num_experts_per_tok=2,
                                                 swiglu_limit=0.7, rope_parameters={**YARN, "truncate": False}),
}

# Their module of a layer -> ours, one above the other where there are several.
ATTENTION = {"q_proj": ["attention.q"], "k_proj": ["attention.k"], "v_proj": ["attention.v"], "o_proj": ["attention.out"],
             "q_norm": ["attention.q_norm"], "k_norm": ["attention.k_norm"]}
STATE_SPACE = {"in_proj": ["ssm.z", "ssm.x", "ssm.b", "ssm.c", "ssm.dt"], "conv1d": ["ssm.conv_x", "ssm.conv_b", "ssm.conv_c"],
               "norm": ["ssm.norm"], "out_proj": ["ssm.out"]}
MLP = {"gate_proj": ["mlp.gate"], "up_proj": ["mlp.up"], "down_proj": ["mlp.down"]}


def under(module, parts):
    return {f"{module}.{name}": ours for name, ours in parts.items()}


LLAMA = {**under("self_attn", ATTENTION), **under("mlp", MLP), "input_layernorm": ["attention_norm"], "post_attention_layernorm": ["mlp_norm"]}
BEHIND = {**LLAMA, "post_attention_layernorm": ["attention_post_norm"], "pre_feedforward_layernorm": ["mlp_norm"],
          "post_feedforward_layernorm": ["mlp_post_norm"]}
ONE_BRANCH = {**under("mixer", {**STATE_SPACE, **ATTENTION, **MLP}), "norm": ["ssm_norm", "attention_norm", "mlp_norm"]}
PARTS = {
    "gpt_neox": {"input_layernorm": ["attention_norm"], "post_attention_layernorm": ["mlp_norm"], "attention.dense": ["attention.out"],
                 "attention.query_key_value": ["attention.q", "attention.k", "attention.v"], "mlp.dense_h_to_4h": ["mlp.up"],
                 "mlp.dense_4h_to_h": ["mlp.down"]},
    "phi3": {**LLAMA, "self_attn.qkv_proj": ["attention.q", "attention.k", "attention.v"], "mlp.gate_up_proj": ["mlp.gate", "mlp.up"]},
    "olmo2": BEHIND, "olmo3": BEHIND, "smollm3": LLAMA, "gemma3_text": BEHIND, "mamba2": ONE_BRANCH, "nemotron_h": ONE_BRANCH,
    "bamba": {**under("mamba", STATE_SPACE), **under("self_attn", ATTENTION), **under("feed_forward", MLP),
              "input_layernorm": ["ssm_norm", "attention_norm"], "pre_ff_layernorm": ["mlp_norm"]},
    "falcon_h1": {**under("mamba", STATE_SPACE), **under("self_attn", ATTENTION), **under("feed_forward", MLP),
                  "input_layernorm": ["ssm_norm"], "pre_ff_layernorm": ["mlp_norm"]},
    "gpt_oss": {**LLAMA, "post_attention_layernorm": ["experts_norm"], "mlp.router": ["experts.router"]},
}
ENDS_OF_MODEL = {"embed_in": "embed.tokens", "embed_tokens": "embed.tokens", "embeddings": "embed.tokens", "final_layer_norm": "head.norm",
                 "norm": "head.norm", "norm_f": "head.norm", "final_layernorm": "head.norm", "lm_head": "head"}
BARE = {"A_log": "ssm.a_log", "D": "ssm.d", "dt_bias": "ssm.dt_bias", "sinks": "attention.sinks"}  # tensors without a module


def experts_of(tensors, block, part, kind):
    count = sum(name.startswith(f"{block}.experts.") and name.endswith(".down.weight") for name in tensors)
    return torch.stack([tensors[f"{block}.experts.{expert}.{part}.{kind}"] for expert in range(count)])


def expert_tensor(tensors, block, name):
    """gpt-oss: [E, in, out] and [E, out], gate and up in turn."""
    kind = "bias" if name.endswith("_bias") else "weight"
    if name.startswith("down_proj"):
        down = experts_of(tensors, block, "down", kind)
        return down if kind == "bias" else down.transpose(1, 2)
    both = torch.stack([experts_of(tensors, block, part, kind) for part in ("gate", "up")], dim=2).flatten(1, 2)  # [E, 2 F, ...]
    return both if kind == "bias" else both.transpose(1, 2)


def in_their_form(tensors, config, name, shape):
    """Their parameter `name` of what `tensors` has under our names."""
    module, _, kind = name.rpartition(".")
    if ".layers." not in name:
        return tensors[f"{ENDS_OF_MODEL[module.rpartition('.')[2]]}.{kind}"]
    index, part = name.split(".layers.")[1].split(".", 1)
    block = f"blocks.{index}"
    if kind in BARE:
        return tensors[f"{block}.{BARE[kind]}.weight"]
    if ".experts." in name:
        return expert_tensor(tensors, block, kind)
    if part == "mlp.router.bias":
        return tensors[f"{block}.experts.logits.bias"]
    names = [f"{block}.{ours}.{kind}" for ours in PARTS[config.model_type][part.removesuffix("." + kind)]]
    if part.endswith("norm." + kind):
        names = [one for one in names if one in tensors]  # the one that this layer has
    found = [tensors[one] for one in names]
    if part.startswith("attention.query_key_value"):  # the heads of q, k and v in turn
        found = [torch.stack([one.unflatten(0, (config.num_attention_heads, -1)) for one in found], dim=1).flatten(0, 2)]
    return torch.cat(found).view(shape)


def under_prefix(tensors, prefix):
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def step(model, tokens):
    """AdamW from the gradient of a sum of losses; matrices decay, vectors do not, also where several are one tensor."""
    groups = {True: [], False: []}
    for name, parameter in model.named_parameters():
        parameter.grad /= tokens
        groups[parameter.dim() >= 2 and not name.endswith("_bias")].append(parameter)
    return [{"params": groups[True], "weight_decay": 0.1}, {"params": groups[False], "weight_decay": 0.0}]


def summed_loss(logits, targets):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")


class FamiliesTest(support.LockstepTest):
    gradients = packed_hf_test.PackedTest.gradients

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.folder / "from.toml").write_text(support.CONFIG.replace('preset = "gpt2-test"\n', ""))
        tokens = np.fromfile(cls.folder / "austen.bin", dtype="<u2").astype(np.int64)[:SEQ * BATCH + 1]
        cls.inputs, cls.targets = (torch.from_numpy(tokens[i:i + SEQ * BATCH].reshape(BATCH, SEQ)) for i in (0, 1))

    def expect_close(self, ours, theirs, what):
        self.assertEqual(tuple(ours.shape), tuple(theirs.shape), what)
        error = ((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30)).item()
        self.assertLessEqual(error, BOUND, what)

    def write_model(self, folder, config):
        """Random weights, of a size at which a wrong one would show, and no two logits are nearly equal."""
        torch.manual_seed(7)
        model = hf_reference_test.their_model(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                scale = 0.2 if parameter.dim() > 1 and "norm" not in name else 0.1
                parameter.add_(torch.randn_like(parameter) * scale)
        model.save_pretrained(self.folder / folder)
        return model

    def check_layers(self, config):
        """Our layers on parameters of their own, and the config.json that we write of the model."""
        hf_reference_test.HF_DUMP = str(support.BUILD / "hf_dump")
        dump, exported = hf_reference_test.run_ours(config, 2, 21, "v5", 0.0)
        model = hf_reference_test.their_model(config)
        values = under_prefix(dump, "value/")
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(in_their_form(values, config, name, parameter.shape))
        self.assertEqual(sum(value.numel() for value in values.values()), sum(value.numel() for value in model.parameters()))
        tokens, targets = dump["tokens"].long(), dump["targets"].long()
        logits = model(input_ids=tokens, use_cache=False).logits
        loss = summed_loss(logits, targets)
        loss.backward()
        self.expect_close(dump["logits"], logits.detach(), "logits")
        self.expect_close(dump["loss"], loss.detach(), "loss")
        for name, parameter in model.named_parameters():
            self.expect_close(in_their_form(under_prefix(dump, "grad/"), config, name, parameter.shape), parameter.grad, f"gradient of {name}")
        again = hf_reference_test.their_model(exported)
        again.load_state_dict(model.state_dict())
        with torch.no_grad():
            self.assertTrue(torch.equal(again(input_ids=tokens, use_cache=False).logits, logits), "the model of the config.json we write")
        torch.optim.AdamW(step(model, (targets != -100).sum()), lr=0.01, betas=(0.9, 0.95), eps=1e-3).step()
        for name, parameter in model.named_parameters():
            self.expect_close(in_their_form(under_prefix(dump, "updated/"), config, name, parameter.shape), parameter.detach(), f"updated {name}")

    def check_program(self, name, config):
        """Imported, trained by a step, exported."""
        run = name.replace(",", "").replace(" ", "-")
        model = self.write_model(run, config)
        self.check_text(run, model)
        more = ["--moe.balance=none"] if config.model_type == "gpt_oss" else []
        self.do("train", "from.toml", f"--model.from=hf:{run}", f"--run.name={run}", "--data.shuffle=false", "--train.steps=1",
                f"--optimizer.lr={LR}", f"--optimizer.eps={EPS}", "--optimizer.beta1=0.9", "--optimizer.beta2=0.95",
                "--optimizer.weight_decay=0.1", "--optimizer.max_grad_norm=0", *more)
        loss = summed_loss(model(input_ids=self.inputs, use_cache=False).logits, self.targets)
        loss.backward()
        tokens = self.targets.numel()
        self.assert_close({1: self.losses(run)[1]}, {1: loss.item() / tokens}, BOUND)
        groups = step(model, tokens)
        ours = under_prefix(self.gradients(run), "grad/")
        for parameter, value in model.named_parameters():
            self.expect_close(in_their_form(ours, config, parameter, value.shape), value.grad, f"gradient of {parameter}")
        torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), eps=EPS).step()

        self.do("checkpoint", "export", f"runs/{run}", f"{run}-exported", "--to", "hf")
        back = transformers.AutoModelForCausalLM.from_pretrained(self.folder / f"{run}-exported", attn_implementation="eager",
                                                                 experts_implementation="eager").float().eval()
        theirs = dict(model.named_parameters())
        self.assertEqual({name for name, _ in back.named_parameters()}, set(theirs))
        for parameter, value in back.named_parameters():
            self.expect_close(value.detach(), theirs[parameter].detach(), f"{parameter} after a step")
        with torch.no_grad():
            losses = [summed_loss(one(input_ids=self.inputs, use_cache=False).logits, self.targets).item() for one in (back, model)]
        self.assert_close({1: losses[0]}, {1: losses[1]}, BOUND)
        self.assertIn("all equal", self.do("checkpoint", "diff", f"runs/{run}", f"hf:{run}-exported").out)

    def check_text(self, run, model):
        """Greedy text, each token from all before it at once: their caches leave out the limits of steps."""
        prompts = [word for prompt in PROMPTS for word in ("--prompt-ids", ",".join(map(str, prompt)))]
        answers = self.do("generate", "--model", f"hf:{run}", *prompts, "--max-new-tokens", COUNT, "--ignore-eos", "--json").json()["results"]
        for prompt, answer in zip(PROMPTS, answers, strict=True):
            ids = list(prompt)
            for _ in range(COUNT):
                with torch.no_grad():
                    logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
                best = torch.topk(logits, 2)
                self.assertGreater(best.values[0] - best.values[1], 1e-4)  # else another rounding could choose otherwise
                ids.append(best.indices[0].item())
            self.assertEqual(answer["ids"], ids)


for _name, _config in CONFIGS.items():
    _test = "test_" + _name.replace(",", "").replace(" ", "_")
    setattr(FamiliesTest, _test + "_layers", lambda self, config=_config: self.check_layers(config()))
    setattr(FamiliesTest, _test + "_program", lambda self, name=_name, config=_config: self.check_program(name, config()))

if __name__ == "__main__":
    torch.set_num_threads(1)
    support.main()
