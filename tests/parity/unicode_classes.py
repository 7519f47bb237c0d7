"""What the tokenizers library takes each code point for, asked from the library itself.

Its parts carry Unicode tables of different ages (the regular expressions' are younger than the BERT normalizer's), so
asking is the only way to agree on every code point. `python unicode_classes.py > src/tokenizer/unicode_classes.inc` renews
our table; tokenizer_parity.py compares the compiled table with classes() on every code point.
"""
import sys

from tokenizers import Regex, normalizers, pre_tokenizers

# In step with CharClass in src/tokenizer/unicode.h.
LETTER, NUMBER, SPACE, WORD, PUNCTUATION, CONTROL, ACCENT, NFC, NFD, NFKD, DIGIT = (1 << bit for bit in range(11))

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
# Four planes hold all that is assigned, but for a few tags; asking for them takes a quarter of the time.
ASSIGNED_CODE_POINTS = [c for c in CODE_POINTS if c < 0x40000 or 0xE0000 <= c < 0xE1000]


def bert(**chosen):
    options = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
    return normalizers.BertNormalizer(**(options | chosen))


def reordered(nfd, code_points: list[int]) -> set[int]:
    """Canonical combining class not zero: moves before U+0345, whose class is the largest."""
    last = "\u0345"
    return {c for c in code_points if nfd(last + chr(c)) != last + nfd(chr(c))} | {ord(last)}


def classes(code_points: list[int]) -> dict[int, int]:
    """One mask per code point."""
    everything = set(code_points)
    text = "".join(map(chr, code_points))

    def kept(pre_tokenizer) -> set[int]:
        return {ord(c) for piece, _ in pre_tokenizer.pre_tokenize_str(text) for c in piece}

    def matching(pattern: str) -> set[int]:
        return kept(pre_tokenizers.Split(Regex(pattern), "removed", invert=True))

    def changes(normalize) -> set[int]:
        return {c for c in code_points if normalize(chr(c)) != chr(c)}

    words, digits = pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True)
    nfc, nfd, nfkd = (form().normalize_str for form in (normalizers.NFC, normalizers.NFD, normalizers.NFKD))
    clean, strip = bert(clean_text=True).normalize_str, bert(strip_accents=True).normalize_str
    space, marks, decomposed = matching(r"\s"), reordered(nfd, code_points), changes(nfd)
    # What may join with the character before it.
    joining = {ord(c) for composite in decomposed for c in nfd(chr(composite))[1:]}
    members = {
        LETTER: matching(r"\p{L}"),
        NUMBER: matching(r"\p{N}"),
        SPACE: space,
        WORD: {c for c in everything - space if len(words.pre_tokenize_str("a" + chr(c))) == 1},
        PUNCTUATION: everything - kept(pre_tokenizers.Punctuation("removed")),
        CONTROL: {c for c in code_points if clean("a" + chr(c)) == "a"},
        ACCENT: {c for c in code_points if strip("a" + chr(c)) == "a"},
        NFC: marks | changes(nfc) | joining,
        NFD: marks | decomposed,
        NFKD: marks | changes(nfkd),
        DIGIT: {c for c in code_points if len(digits.pre_tokenize_str("a" + chr(c))) == 2},
    }
    masks = dict.fromkeys(code_points, 0)
    for bit, some in members.items():
        for c in some:
            masks[c] |= bit
    return masks


def change_points(masks: dict[int, int]) -> list[tuple[int, int]]:
    """(first code point, mask) wherever the mask changes. Surrogates take the mask before them."""
    result = [(0, masks[0])]
    for c in CODE_POINTS:
        if masks[c] != result[-1][1]:
            result.append((c, masks[c]))
    return result


def main() -> None:
    print("// {first code point, classes from there on}: made by tests/parity/unicode_classes.py, not by hand.")
    line = ""
    for first, mask in change_points(classes(CODE_POINTS)):
        entry = f"{{0x{first:x}, {mask}}},"
        if len(line) + len(entry) + 1 > 110:
            print(line)
            line = ""
        line += (" " if line else "") + entry
    print(line)


if __name__ == "__main__":
    sys.exit(main())
