"""tokenizer.json files in the styles of published models, made by Hugging Face `tokenizers`,
    and text that is hard on them."""
import json
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

END = "<|endoftext|>"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+"]

HARD = [
    "", " ", "   \n\n  \t x  ", "I'll don't we've O'BRIEN'S 'TIS 'tis 'LL'Ve'\u017f don\u2019t",
    "na\u00efve caf\u00e9 cafe\u0301 \u1e69 s\u0323\u0307 s\u0307\u0323 \u212b \ufb01 \u2460 \u00bd",
    "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0\u3002\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab",
    "\U0001F600\U0001F468\u200d\U0001F469\u200d\U0001F467 \U0001F1E9\U0001F1EA \u2764\ufe0f \U0001F44D\U0001F3FD",
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "a\u00a0b\u2003c\u3000d\u200be\u180ef\u0085g\u2028h\ufeffi",
    "1234567890 \u0661\u0662\u0663 \u00bd \u2167 x\u00b2 12,345.67 0x1F",
    "nul\0byte \x01\x7f", f"{END} a{END}b <|endoftext {END}{END}", "tabs\tand\r\nlines\r\n\r\n  indented\n\r\r\n\n\r",
    "!!!??? ... --- ___ \u2014 \u2026 \u201cquoted\u201d", "a" * 5000, " " * 3000, "\n" * 2000 + "x", "ab" * 2000,
    "\u0301" * 300, "e" + "\u0301\u0316" * 200, "\r\n" * 500, "=" * 999, "<0x41><0xE2>",
    "\u2581under\u2581score \u2581", " \u2581 x",
    "def f(x):\n    return  x**2  # \u03c0\n\n\nclass A:\n\tpass\n", "http://example.org/a?b=c&d=%20#e",
    "A\u030a" + "\u0300" * 40,
]


def random_text(seed, length):
    """Code points of many blocks, assigned ones or not, without surrogates."""
    draw = random.Random(seed)
    blocks = [(0x20, 0x7E)] * 4 + [(0x0, 0x1F), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x5D0, 0x6FF),
                                   (0x900, 0xDFF), (0x2000, 0x206F), (0x2190, 0x2BFF), (0x3040, 0x30FF),
                                   (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x1F300, 0x1F64F)]
    return "".join(chr(draw.randint(*draw.choice(blocks))) for _ in range(length))


PARTS = ["the", "The", " and", "ing", "'s", "'LL", "\u2019t", " ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u3000", ".",
    "...", "!?", "<|", "|>",
         END, "<|im_start|>", "<|im_", "<tool>", "<tool", "tool>", "<<tool>>", "Bennet", "Bennets", "caf\u00e9",
             "cafe\u0301", "\u0301",
         "abc", "abcd", "bc", "bcde", "_", "7", "42", "1234", "\u0663", "\u00bd", "\u65e5\u672c", "\ud55c",
         "\u0928\u092e\u0938\u094d", "\U0001F468\u200d\U0001F469", "\u200d",
         "\ufe0f", "\u0430\u0431", "\u0410", "\u00df", "\u017f", "\u2581", "<0x0A>", "[MASK]", " [MASK]", "<sp>",
         "x" * 70]


def mixed_text(seed, length):
    """Words, signs, white space and added tokens, whole and in part, one behind the other."""
    draw = random.Random(seed)
    return "".join(draw.choice(PARTS) for _ in range(length))


def added_tokens():
    """Adjacent, overlapping, one the beginning of another, and with every flag."""
    return [AddedToken("<|im_start|>", special=True), AddedToken("<|im_", normalized=False), AddedToken("Bennet",
        normalized=True),
            AddedToken("caf\u00e9", normalized=True), AddedToken("abc", normalized=False), AddedToken("abcd",
            normalized=False),
            AddedToken("bcde", normalized=False), AddedToken("<tool>", normalized=False), AddedToken("tool>",
            normalized=True),
            AddedToken("[MASK]", lstrip=True, special=True), AddedToken("<sp>", rstrip=True, lstrip=True,
            normalized=False),
            AddedToken("the", single_word=True, normalized=False), AddedToken("42", single_word=True, rstrip=True,
            normalized=True),
            AddedToken("  ", normalized=False), AddedToken("\u0663", normalized=True), AddedToken("\u65e5\u672c",
            special=True)]


def byte_level_model(text, vocab_size):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=[END], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def sequence(*steps, use_regex=False, add_prefix_space=False):
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space,
        use_regex=use_regex)])


def regex_split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def template(token, token_id, behind=False):
    single = f"$A {token}" if behind else f"{token} $A"
    return processors.TemplateProcessing(single=single, pair=f"{token} $A {token} $B", special_tokens=[(token,
        token_id)])


def byte_level_styles():
    """Name -> what is set on a tokenizer: pre (required), normalizer, post, decoder, ignore_merges."""
    bos = template(END, 0)
    styles = {
        "gpt2": dict(pre=pre_tokenizers.ByteLevel(add_prefix_space=False),
        post=processors.ByteLevel(trim_offsets=False)),
        "prefix space": dict(pre=pre_tokenizers.ByteLevel(add_prefix_space=True)),
        "llama3": dict(pre=sequence(regex_split(LLAMA3)), ignore_merges=True,
                       post=processors.Sequence([processors.ByteLevel(), bos])),
        "qwen2": dict(pre=sequence(regex_split(QWEN2)), normalizer=normalizers.NFC(), post=processors.ByteLevel()),
        "gpt4o": dict(pre=sequence(regex_split(GPT4O)), post=template(END, 0, behind=True)),
        "deepseek": dict(pre=sequence(*map(regex_split, DEEPSEEK)), normalizer=normalizers.Sequence([]), post=bos),
        "starcoder": dict(pre=sequence(pre_tokenizers.Digits(True), use_regex=True)),
        "digits together": dict(pre=sequence(pre_tokenizers.Digits(False), use_regex=True)),
        "digits behind bytes": dict(pre=pre_tokenizers.Sequence([
            pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.Digits(True), regex_split("[0-9][0-9]")])),
        "nfkc": dict(pre=pre_tokenizers.ByteLevel(), normalizer=normalizers.NFKC()),
        "nfd": dict(pre=pre_tokenizers.ByteLevel(), normalizer=normalizers.Sequence([normalizers.NFD(),
        normalizers.Prepend("_")])),
        "replace": dict(pre=pre_tokenizers.ByteLevel(add_prefix_space=False), normalizer=normalizers.Sequence([
            normalizers.Replace(Regex(r"[\r\n]+|(?<=a)b*"), "\u00b6"), normalizers.Replace(" ", "  "),
                normalizers.NFC(),
            normalizers.Prepend("\u2581 ")])),
        "no decoder": dict(pre=pre_tokenizers.ByteLevel(), decoder=None),
        "decoder chain": dict(pre=pre_tokenizers.ByteLevel(), decoder=decoders.Sequence([
            decoders.ByteLevel(), decoders.Replace("the", "THE"), decoders.Fuse(), decoders.Strip(" ", 2, 0)])),
        "removed": dict(pre=sequence(regex_split(r"\d", "removed"), use_regex=True)),
    }
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        for invert in (False, True):
            pattern = r"\w+|[^\w\s]" if invert else r"\s|(?<=\w)\b\S"
            styles[f"{behavior} {invert}"] = dict(pre=sequence(regex_split(pattern, behavior, invert),
                pre_tokenizers.Split("e", behavior, invert)))
    return styles


def byte_level(model, style):
    merges = [tuple(pair) for pair in model["merges"]]
    tokenizer = Tokenizer(models.BPE(model["vocab"], merges, ignore_merges=style.get("ignore_merges", False)))
    tokenizer.pre_tokenizer = style["pre"]
    if style.get("decoder", 1):
        tokenizer.decoder = style.get("decoder") or decoders.ByteLevel()
    if "normalizer" in style:
        tokenizer.normalizer = style["normalizer"]
    if "post" in style:
        tokenizer.post_processor = style["post"]
    tokenizer.add_special_tokens([END])
    tokenizer.add_tokens(added_tokens())
    return tokenizer


def sentencepiece_styles(text):
    """Vocabularies over code points: as Llama 2 (normalizer, byte fallback), with Metaspace,
    and with an unknown token."""
    def trained(pre, normalizer, **options):
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", **options))
        if pre:
            tokenizer.pre_tokenizer = pre
        if normalizer:
            tokenizer.normalizer = normalizer
        specials = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256) if options.get("byte_fallback")]
        trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=specials, show_progress=False)
        tokenizer.train_from_iterator(text.split("\n"), trainer)
        return tokenizer

    def rebuilt(tokenizer, pre, normalizer, decoder, post, **options):
        model = json.loads(tokenizer.to_str())["model"]
        made = Tokenizer(models.BPE(model["vocab"], [tuple(pair) for pair in model["merges"]], unk_token="<unk>",
            **options))
        if pre:
            made.pre_tokenizer = pre
        if normalizer:
            made.normalizer = normalizer
        made.decoder, made.post_processor = decoder, post
        made.add_special_tokens(["<unk>", "<s>", "</s>"])
        made.add_tokens(added_tokens())
        return made

    llama = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    back = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0)])
    post = template("<s>", 1)
    made = {}
    meta = pre_tokenizers.Metaspace(prepend_scheme="always")
    base = trained(meta, None, byte_fallback=True, fuse_unk=True)
    made["llama2"] = rebuilt(base, None, llama, back, post, byte_fallback=True, fuse_unk=True)
    for scheme in ("always", "first", "never"):
        for cut in (True, False):
            made[f"metaspace {scheme} {cut}"] = rebuilt(
                base, pre_tokenizers.Metaspace(prepend_scheme=scheme, split=cut), None,
                decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=scheme)]), post,
                    byte_fallback=True)
    plain = trained(meta, None)
    made["unknown fused"] = rebuilt(plain, meta, None, decoders.Metaspace(), post, fuse_unk=True)
    made["unknown each"] = rebuilt(plain, meta, normalizers.NFKC(), decoders.Sequence([decoders.Fuse(),
        decoders.Metaspace()]), post)
    return made
