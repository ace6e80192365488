#!/usr/bin/env bash
# The demo behind `make demo`: real text, a tokenizer, a small model on 2 ranks, and what it writes.
set -euo pipefail
lockstep=$1
data=data/demo

say() { printf '\n== %s\n' "$*"; }

if [ ! -f $data/train.idx ] || [ ! -f $data/validation.idx ]; then
  say "real text: six novels of Jane Austen and the King James Bible, from Debian packages"
  "$lockstep" data demo --out $data/text --cache build/corpus
  say "a byte-level BPE tokenizer of 4096 tokens"
  "$lockstep" data tokenizer $data/text/train/*.txt --vocab-size 4096 --out $data/tokenizer.json
  say "token files; Persuasion and Revelation are held out for validation"
  "$lockstep" data prepare $data/text/train/*.txt --tokenizer $data/tokenizer.json --out $data/train
  "$lockstep" data prepare $data/text/validation/*.txt --tokenizer $data/tokenizer.json --out $data/validation
fi

say "training on 2 ranks, gradients summed by ring all-reduce"
"$lockstep" train examples/demo.toml -n 2

say "what the model writes"
for prompt in "It was a truth" "And the LORD said unto"; do
  "$lockstep" generate runs/demo --prompt "$prompt" --max-new-tokens 60 --temperature 0.7 --top-k 40
  echo
done

cat <<END
The run is in runs/demo: config.resolved.toml, metrics.jsonl, tb/ (tensorboard --logdir runs/demo/tb), logs/ and
checkpoints/. The newest checkpoint: $(readlink -f runs/demo/checkpoints/latest | sed "s|$PWD/||")

Try next:
  $lockstep verify examples/demo.toml -n 2 --steps 2        does the layout compute what one rank computes?
  $lockstep show examples/demo.toml -n 2 program            the step as a program: overlap is visible in the list
  $lockstep show examples/demo.toml -n 2 traffic            what ring and parameter server put on each link
  $lockstep train examples/demo.toml -n 2 --train.steps=800 --checkpoint.resume=auto
  $lockstep generate runs/demo --prompt "She had" --temperature 0.8
END
