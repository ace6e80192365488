"""`lockstep chat`: talks over a pipe and at a terminal. chat_test.py BUILD_FOLDER"""
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import time

import support
import torch
import transformers

TEMPLATE = """{%- for m in messages -%}
<{{ m.role }}>{{ m.content }}</>
{%- endfor -%}
{% if messages[-1].content == "refuse" %}{{ raise_exception("not this") }}{% endif -%}
{%- if add_generation_prompt -%}<assistant>{%- endif -%}"""
COUNT = 8


class ChatTest(support.LockstepTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        torch.manual_seed(3)
        config = transformers.LlamaConfig(vocab_size=512, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                          num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096,
                                          bos_token_id=None, eos_token_id=None, pad_token_id=None)
        transformers.LlamaForCausalLM(config).save_pretrained(cls.folder / "model")
        shutil.copy(cls.folder / "tok.json", cls.folder / "model" / "tokenizer.json")
        shutil.copytree(cls.folder / "model", cls.folder / "plain")
        (cls.folder / "model" / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "bos_token": "<|endoftext|>"}))

    def chat(self, lines, *arguments, model="hf:model"):
        command = self.command("chat", model, "--max-new-tokens", COUNT, *arguments)
        done = subprocess.run(command, cwd=self.folder, input=lines, capture_output=True, text=True, timeout=60, check=False)
        return support.Result(command, done.returncode, done.stdout, done.stderr)

    def continuation(self, prompt):
        """What generate says to the whole prompt."""
        answer = self.do("generate", "--model", "hf:plain", "--json", "--prompt", prompt, "--max-new-tokens", COUNT).json()
        return answer["text"][len(prompt):]

    def test_a_talk_is_what_generate_says_to_the_template(self):
        first = self.continuation("<system>Be brief.</><user>Anne</><assistant>")
        second = self.continuation(f"<system>Be brief.</><user>Anne</><assistant>{first}</><user>and</><assistant>")
        result = self.chat("Anne\nand\n/reset\nAnne\n/exit\nnot read\n", "--system", "Be brief.")
        self.assertEqual(result.code, 0, result)
        self.assertEqual(result.out, f"{first}\n{second}\n{first}\n")

    def test_without_a_template_only_raw(self):
        for model in ("hf:plain",):
            refused = self.chat("Anne\n", model=model)
            self.assertEqual(refused.code, 2, refused)
            for word in ("LS1251", "--raw", "chat template"):
                self.assertIn(word, refused.err)
        result = self.chat("Anne\n", "--raw", model="hf:plain")
        self.assertEqual(result.out, self.continuation("Anne") + "\n", result)

    def test_the_template_may_refuse(self):
        refused = self.chat("refuse\n")
        self.assertEqual(refused.code, 7, refused)
        self.assertIn("not this", refused.err)

    def test_at_a_terminal_ctrl_c_ends_the_answer(self):
        command = self.command("chat", "hf:model", "--max-new-tokens", 3000)
        parent, child = pty.openpty()
        process = subprocess.Popen(command, cwd=self.folder, stdin=child, stdout=child, stderr=child, start_new_session=True)
        os.close(child)
        seen = b""

        def until(word, seconds=40):
            nonlocal seen
            deadline = time.monotonic() + seconds
            while word not in seen:
                self.assertLess(time.monotonic(), deadline, seen[-2000:])
                if select.select([parent], [], [], 0.2)[0]:
                    seen += os.read(parent, 65536)
            seen = seen[seen.index(word) + len(word):]

        try:
            until(b"> ")
            os.write(parent, b"Anne\n")
            until(b"Anne")
            while len(seen) < 40:  # the answer has begun
                seen += os.read(parent, 65536)
            os.kill(process.pid, signal.SIGINT)
            until(b"> ")
            os.write(parent, b"/nonsense\n")
            until(b"unknown")
            until(b"> ")
            os.write(parent, b"/exit\n")
            self.assertEqual(process.wait(timeout=20), 0)
        finally:
            process.kill()
            process.wait()
            os.close(parent)


if __name__ == "__main__":
    support.main()
