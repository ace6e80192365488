"""Random token ids as Megatron's .bin/.idx pair, the format Lockstep trains from."""

import random
import struct
from array import array


def write_random_tokens(prefix, count, vocab_size, seed=1234):
    """One document of `count` 16-bit ids below `vocab_size` at prefix.bin and prefix.idx."""
    assert vocab_size <= 1 << 16
    ids = array("H", random.Random(seed).choices(range(vocab_size), k=count))
    with open(f"{prefix}.bin", "wb") as file:
        ids.tofile(file)
    u16_code, version, sequences = 8, 1, 1
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\0\0")
        file.write(struct.pack("<QBQQ", version, u16_code, sequences, sequences + 1))
        file.write(struct.pack("<i", count))  # lengths
        file.write(struct.pack("<q", 0))  # byte offsets
        file.write(struct.pack("<qq", 0, sequences))  # documents begin at these sequences
