"""Greedy generation by Hugging Face transformers, fp32 on the CPU: generate_hf.py MODEL_DIR [--prompt-tokens N] ...

Prints one line of JSON: the seconds to the first token (prefill and one choice) and the tokens per second of those after it,
medians of the repetitions. All sequences of the batch run to --max-new-tokens: the end token is not heeded.
"""

import argparse
import json
import statistics
import sys
import time

import torch
import transformers


class StepClock(transformers.StoppingCriteria):
    """When each step's tokens were chosen: asked after every step, never stops."""

    def __init__(self):
        self.times = []

    def __call__(self, input_ids, scores, **kwargs):
        self.times.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a directory with config.json and safetensors")
    parser.add_argument("--prompt-ids", help="token ids, separated by commas; drawn at random unless given")
    parser.add_argument("--prompt-file", help='JSON lines of {"ids": [...]}, all of one length: the batch')
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=3, help="after one that is not counted")
    return parser.parse_args()


def prompts(arguments, vocabulary):
    if arguments.prompt_file:
        with open(arguments.prompt_file) as file:
            return torch.tensor([json.loads(line)["ids"] for line in file])
    if arguments.prompt_ids:
        row = torch.tensor([int(word) for word in arguments.prompt_ids.split(",")])
        return row.repeat(arguments.batch, 1)
    generator = torch.Generator().manual_seed(1234)
    return torch.randint(vocabulary, (arguments.batch, arguments.prompt_tokens), generator=generator)


def generate(model, ids, count):
    """(seconds to the first token, seconds of each token after it, the tokens)"""
    clock, begin = StepClock(), time.perf_counter()
    tokens = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
        stopping_criteria=transformers.StoppingCriteriaList([clock]),
    )
    times = clock.times
    return times[0] - begin, [b - a for a, b in zip(times, times[1:])], tokens[:, ids.shape[1] :]


def main():
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32, local_files_only=True)
    model.eval()
    model.generation_config.eos_token_id = None
    ids = prompts(arguments, model.config.vocab_size)
    firsts, steps, rates = [], [], []
    with torch.inference_mode():
        for repetition in range(arguments.repetitions + 1):
            first, others, tokens = generate(model, ids, arguments.max_new_tokens)
            if repetition > 0:
                firsts.append(first)
                steps += others
                rates += [ids.shape[0] * len(others) / sum(others)] if others else []
    report = {
        "first_token_seconds": statistics.median(firsts),
        "step_seconds": statistics.median(steps) if steps else None,
        "tokens_per_s": statistics.median(rates) if rates else None,
        "prompt_tokens": ids.shape[1],
        "new_tokens": tokens.shape[1],
        "batch": ids.shape[0],
        "threads": arguments.threads,
        "tokens": tokens.tolist(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
