"""Writes a model with random weights as a Hugging Face directory: random_hf.py gpt2-124m|llama-15m DIR"""

import argparse
import json
import sys

import torch
import transformers

from shapes import SHAPES


def config_of(shape):
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    if shape.family == "gpt2":
        return transformers.GPT2Config(
            vocab_size=shape.vocab_size, n_positions=shape.max_seq_len, n_embd=shape.hidden, n_layer=shape.layers,
            n_head=shape.heads, n_inner=shape.ffn, **ends,
        )
    return transformers.LlamaConfig(
        vocab_size=shape.vocab_size, max_position_embeddings=shape.max_seq_len, hidden_size=shape.hidden,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.heads,
        intermediate_size=shape.ffn, tie_word_embeddings=True, **ends,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=SHAPES)
    parser.add_argument("directory")
    arguments = parser.parse_args()
    torch.manual_seed(1234)
    model = transformers.AutoModelForCausalLM.from_config(config_of(SHAPES[arguments.model]))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)  # logits far enough apart that rounding does not choose the token
    model.save_pretrained(arguments.directory)
    print(json.dumps({"parameters": sum(p.numel() for p in model.parameters())}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
