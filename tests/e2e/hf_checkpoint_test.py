"""Model directories of Hugging Face: tiny models that transformers writes, read by several ranks, saved, exported, loaded by
transformers again. hf_checkpoint_test.py BUILD_FOLDER"""
import json
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import torch
from safetensors import safe_open
from transformers import (AutoModelForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM, GPT2Config, GPT2LMHeadModel, GPT2Model, LlamaConfig, LlamaForCausalLM, MistralConfig,
                          MistralForCausalLM, MixtralConfig, MixtralForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config,
                          Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM)

from transformers.utils import logging

import families_test
import support

logging.disable_progress_bar()
DATA, CHECKPOINT, MISMATCH, USAGE = 7, 8, 9, 2
SIZES = {"vocab_size": 61, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 32, "bos_token_id": 0, "eos_token_id": 0}


def gpt2(kind=GPT2LMHeadModel, **more):
    return kind(GPT2Config(vocab_size=61, n_positions=32, n_embd=24, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0, **more))


MODELS = {
    "gpt2": gpt2,
    "gpt2 untied": lambda: gpt2(tie_word_embeddings=False),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, rope_theta=5000.0)),
    "llama tied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, head_dim=8, sliding_window=None)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=True)),
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=12, num_experts_per_tok=2)),
    "qwen3_moe": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, head_dim=8, num_experts=4, num_experts_per_tok=3,
                                                            moe_intermediate_size=20, mlp_only_layers=[1], norm_topk_prob=True)),
    "qwen3_moe as it is": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, num_experts=5, num_experts_per_tok=2, attention_bias=True,
                                                                     moe_intermediate_size=20, decoder_sparse_step=2)),
    "deepseek_v3": lambda: DeepseekV3ForCausalLM(DeepseekV3Config(
        **{**SIZES, "num_key_value_heads": 4}, q_lora_rank=10, kv_lora_rank=12, qk_nope_head_dim=4, qk_rope_head_dim=4, v_head_dim=6,
        n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1, moe_intermediate_size=20, first_k_dense_replace=1,
        num_nextn_predict_layers=0)),
    **{name: lambda config=config: AutoModelForCausalLM.from_config(config()).float() for name, config in families_test.CONFIGS.items()},
}


class HfCheckpointTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        self.folder = Path(tempfile.mkdtemp(prefix="lockstep-hf-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def lockstep(self, *arguments, code=0):
        command = [str(support.BUILD / "lockstep"), "checkpoint", *map(str, arguments)]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=support.SECONDS)
        result = support.Result(command, done.returncode, done.stdout, done.stderr)
        self.assertEqual(done.returncode, code, result)
        return result

    def model(self, make, name="model", dtype=torch.float32, **how):
        """Written by transformers, with every parameter random (fresh norms and biases are ones and zeros)."""
        model = make().to(dtype)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.3)
        model.save_pretrained(self.folder / name, **how)
        return model.eval()

    def run_of(self, directory="model", ranks=3, dtype="fp32", code=0):
        """A run whose first step `ranks` ranks have saved, each with its pieces of the model."""
        run = self.folder / f"run-{ranks}"
        shutil.rmtree(run, ignore_errors=True)
        done = subprocess.run([str(support.BUILD / "checkpoint_write"), "--import", directory, run / "checkpoints", str(ranks), dtype],
                              cwd=self.folder, capture_output=True, text=True, timeout=support.SECONDS)
        self.assertEqual(done.returncode, code, done.stderr)
        if code:
            return done.stderr
        shutil.copy(self.folder / directory / "config.json", run / "hf_config.json")
        return run

    def assert_same_logits(self, ours, theirs):
        ids = torch.randint(61, (2, 17))
        with torch.no_grad():
            self.assertTrue(torch.equal(AutoModelForCausalLM.from_pretrained(ours, dtype=theirs.dtype).eval()(ids).logits,
                                        theirs(ids).logits))

    def test_there_and_back_gives_the_same_bytes_and_logits(self):
        for name, make in MODELS.items():
            with self.subTest(name):
                back = self.folder / "back"
                shutil.rmtree(back, ignore_errors=True)
                shutil.rmtree(self.folder / "model", ignore_errors=True)
                model = self.model(make)
                config = json.loads((self.folder / "model/config.json").read_text())
                config["someone_elses_key"] = {"a": [1, None, "\u00e4"]}
                (self.folder / "model/config.json").write_text(json.dumps(config))
                run = self.run_of()
                (run / "tokenizer.json").write_text("{}")
                self.lockstep("export", run, back, "--to", "hf")
                self.assertEqual((back / "model.safetensors").read_bytes(), (self.folder / "model/model.safetensors").read_bytes())
                self.assertEqual(json.loads((back / "config.json").read_text()), config)
                self.assertEqual(sorted(path.name for path in back.iterdir()), ["config.json", "model.safetensors", "tokenizer.json"])
                self.assert_same_logits(back, model)
                # Without the original's config.json ours says the same of the model.
                (run / "hf_config.json").unlink()
                self.lockstep("export", run, self.folder / "own" / name, "--to", "hf")
                self.assert_same_logits(self.folder / "own" / name, model)
                diff = self.lockstep("diff", run, f"hf:{back}", "--json").json()
                self.assertEqual((diff["equal"], diff["different"]), (True, []))

    def test_shards_are_cut_as_transformers_cuts_them(self):
        model = self.model(MODELS["qwen3"], max_shard_size="12KB")
        self.lockstep("export", self.run_of(ranks=2), "back", "--to", "hf", "--max-shard-size", "12KB")
        for path in (self.folder / "model").glob("model*"):
            ours = (self.folder / "back" / path.name).read_bytes()
            self.assertEqual(json.loads(ours) if path.suffix == ".json" else ours,
                             json.loads(path.read_bytes()) if path.suffix == ".json" else path.read_bytes(), path.name)
        self.assertGreater(len(list((self.folder / "back").glob("model-*"))), 3)
        self.assert_same_logits(self.folder / "back", model)

    def test_experts_that_are_stored_stacked(self):
        """As the classes of transformers have them, and as they write them where they are asked to."""
        for name in ("mixtral", "qwen3_moe"):
            with self.subTest(name):
                shutil.rmtree(self.folder / "model", ignore_errors=True)
                model = self.model(MODELS[name], save_original_format=False)
                with safe_open(self.folder / "model/model.safetensors", "pt") as file:
                    self.assertIn("model.layers.0.mlp.experts.gate_up_proj", file.keys())
                self.lockstep("export", self.run_of(), self.folder / "back" / name, "--to", "hf")
                self.assert_same_logits(self.folder / "back" / name, model)
                model.save_pretrained(self.folder / "usual" / name)
                self.assertEqual((self.folder / "back" / name / "model.safetensors").read_bytes(),
                                 (self.folder / "usual" / name / "model.safetensors").read_bytes())
                self.assertIn("all equal", self.lockstep("diff", "model", f"hf:back/{name}").out)

    def test_experts_of_another_number_are_named(self):
        self.model(MODELS["mixtral"])
        config = json.loads((self.folder / "model/config.json").read_text())
        for count, name in ((13, "model.layers.0.block_sparse_moe.experts.12.w1.weight"),
                            (11, "model.layers.0.block_sparse_moe.experts.11.w1.weight")):
            (self.folder / "model/config.json").write_text(json.dumps({**config, "num_local_experts": count}))
            message = self.run_of(code=DATA)
            self.assertIn("LS1324", message)
            self.assertIn(name, message)

    def test_dtypes(self):
        model = self.model(MODELS["llama"], dtype=torch.bfloat16)
        run = self.run_of(dtype="bf16")
        self.lockstep("export", run, "same", "--to", "hf")
        self.assertEqual((self.folder / "same/model.safetensors").read_bytes(), (self.folder / "model/model.safetensors").read_bytes())
        self.lockstep("export", run, "wide", "--to", "hf", "--dtype", "fp32")
        for name, dtype in (("same", torch.bfloat16), ("wide", torch.float32)):
            loaded = AutoModelForCausalLM.from_pretrained(self.folder / name, dtype="auto")
            self.assertEqual(loaded.dtype, dtype)
            for ours, theirs in zip(loaded.parameters(), model.parameters()):
                self.assertTrue(torch.equal(ours, theirs.to(dtype)))
        diff = self.lockstep("diff", "same", "wide", "--json").json()
        self.assertTrue(diff["equal"])
        self.assertEqual(len(diff["different"]), diff["tensors"])

    def test_a_model_without_its_head_class(self):
        """GPT2Model writes no prefix, as the published gpt2 has none."""
        self.model(lambda: gpt2(GPT2Model))
        self.lockstep("export", self.run_of(), "back", "--to", "hf")
        self.assert_same_logits(self.folder / "back", AutoModelForCausalLM.from_pretrained(self.folder / "model").eval())

    def test_inspect_verify_and_diff(self):
        self.model(MODELS["qwen2"])
        run = self.run_of()
        report = self.lockstep("inspect", "model", "--json").json()
        self.assertTrue(report["ok"])
        self.assertEqual(report["hf"]["tensors"], {"F32": 27})
        self.assertIn("every value finite", self.lockstep("verify", "hf:model").out)
        self.assertIn("whole", self.lockstep("verify", run).out)
        other = AutoModelForCausalLM.from_pretrained(self.folder / "model")
        with torch.no_grad():
            other.model.layers[1].mlp.up_proj.weight[5, 3] += 2
            other.model.layers[0].self_attn.k_proj.bias[7] = float("nan")
        other.save_pretrained(self.folder / "other")
        diff = self.lockstep("diff", run, "other", code=MISMATCH).out
        self.assertIn("blocks.1.mlp.up.weight   F32, 1 of 960 values differ, at most by ", diff)
        self.assertIn("blocks.0.attention.k.bias   F32, 1 of 12 values differ, one of them not a number", diff)
        self.assertIn("model.layers.0.self_attn.k_proj.bias (our blocks.0.attention.k.bias): 1 of 12",
                      self.lockstep("verify", "other", code=DATA).out)
        self.lockstep("inspect", "other")

    def test_bad_input(self):
        self.model(MODELS["llama"])
        run = self.run_of()
        self.lockstep("export", run, "back", "--to", "hf")
        self.assertIn("LS1330", self.lockstep("export", run, "back", "--to", "hf", code=CHECKPOINT).err)
        for arguments in (["export", run, "x"], ["export", run, "x", "--to", "onnx"], ["export", run, "--to", "hf"],
                          ["export", run, "x", "--to", "hf", "--dtype", "fp8"], ["diff", run],
                          ["export", run, "x", "--to", "hf", "--max-shard-size", "-1GB"], ["inspect", run, "--dtype", "fp32"]):
            self.lockstep(*arguments, code=USAGE)
        self.assertIn("LS1310", self.lockstep("export", "none", "x", "--to", "hf", code=CHECKPOINT).err)
        self.assertFalse((self.folder / "x").exists())

        config = json.loads((self.folder / "model/config.json").read_text())
        (self.folder / "model/config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
        message = self.run_of(code=DATA)
        self.assertIn("LS1324", message)
        self.assertIn("model.layers.2.input_layernorm.weight", message)
        (self.folder / "model/config.json").write_text(json.dumps(config))
        os.truncate(self.folder / "model/model.safetensors", 5000)
        self.assertIn("LS1290", self.run_of(code=DATA))
        os.rename(self.folder / "model/model.safetensors", self.folder / "model/pytorch_model.bin")
        self.assertIn("LS1321", self.run_of(code=DATA))


if __name__ == "__main__":
    support.main()
