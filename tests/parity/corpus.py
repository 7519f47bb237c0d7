"""Texts for the tokenizer tests and benchmarks: prose and code from Python's own library, generated text in many scripts, and inputs that
are difficult for tokenizers: combining marks, emoji, runs of spaces, invalid UTF-8. Nothing is downloaded."""
import random
import sysconfig
from pathlib import Path

SENTENCES = [
    "The quick brown fox can't jump over the lazy dog's 1,234.56 fences; it'll try, won't it?",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Straße, STRASSE, ẞ.",
    "Voilà, l'élève naïf où ça? Œuvre, cœur, aïeul; «guillemets» et 12 345,67 €.",
    "¿Qué pasó ayer? El niño comió piñas. ¡Olé! n.º 5, 3.ª",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Ёлка № 12.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. ΟΔΟΣ ὈΔΥΣΣΕΎΣ ᾳ ῷ",
    "Iğdır'ın İSTANBUL ılık ışık, IĞDIR; dotless ı and dotted İ.",
    "Người Việt Nam nói tiếng Việt; đường phố Hà Nội rất đông.",
    "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。",
    "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。ｶﾀｶﾅ １２３",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 각 한글",
    "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق. قُلْ هُوَ ٱللَّهُ أَحَدٌ ١٢٣",
    "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. שָׁלוֹם",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता प्राप्त है। १२३",
    "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์",
    "ყველა ადამიანი იბადება თავისუფალი. Բոլոր մարդիկ ծնվում են ազատ.",
    "👩‍👩‍👧‍👦 family, 👍🏽 skin, 🇩🇪🇯🇵 flags, ☃️ snow, 1️⃣ key, 🏴󠁧󠁢󠁥󠁮󠁧󠁿 tag, 🤷🏿‍♀️",
    "e\u0301 \u00e9 a\u0323\u0302 \u1ead q\u0307\u0323 q\u0323\u0307 \u0344 \u212b \u2126 \ufb01 \u1100\u1161\u11a8 \uac01 \u0958",
    "x² + y³ ≤ ½ ∑∫√∞ ≠ ≈ → ⇒ № ™ © ® ‰ … — – ‘ ’ “ ” „ Ⅷ ⑫ ㊙ ﷺ",
    "zero\u200bwidth non\u00a0break thin\u2009 ideographic\u3000 line\u2028sep para\u2029sep nel\u0085 bom\ufeff soft\u00adhyphen",
    "I'M YOU'RE we'Ve THEY'LL he'D it'ſ 'tis o'clock rock'n'roll ''quoted'' 'K 'ſ",
    "<|endoftext|> <|begin_of_text|>text<|eot_id|>  <mask>  [MASK] [CLS][SEP] </s><s> café cafe\u0301 <tool_call> remodel model models",
    "def f(x):\n\treturn {**x, 'a':[1,2,3]}  # comment\n\n\n    if x>=10**-3: pass\r\n\r\n",
    "https://example.org/a/b?c=d&e=f#g user@example.com C:\\Windows\\System32 $HOME ~/.bashrc --flag=value",
]


def prose(size: int) -> str:
    from pydoc_data.topics import topics  # the language reference, as text

    return "\n".join(topics[key] for key in sorted(topics))[:size]


def code(size: int) -> str:
    text, folder = "", Path(sysconfig.get_path("stdlib"))
    for path in sorted(folder.glob("*.py")):
        text += path.read_text(encoding="utf-8", errors="replace")
        if len(text) > size:
            break
    return text[:size]


def scripts(random_source: random.Random, size: int) -> str:
    """Shuffled words of the sentences above, with a natural frequency distribution."""
    words = [word for sentence in SENTENCES for word in sentence.split(" ") if word]
    random_source.shuffle(words)
    parts, total = [], 0
    while total < size:
        word = words[int(len(words) * random_source.random() ** 2)]
        parts.append(word + random_source.choice([" "] * 12 + ["\n", "  ", ", ", ". ", ""]))
        total += len(parts[-1])
    return "".join(parts)


def ideographs(random_source: random.Random, size: int) -> str:
    """Chinese-looking clauses without spaces; few characters are frequent, many are rare."""
    clause = lambda: "".join(chr(0x4E00 + int(6000 * random_source.random() ** 3)) for _ in range(random_source.randint(2, 18)))
    parts, total = [], 0
    while total < size:
        parts.append(clause() + random_source.choice("，，，。、！？\n"))
        total += len(parts[-1])
    return "".join(parts)


def spaces(random_source: random.Random, count: int) -> str:
    kinds = [" ", "  ", "    ", "\t", "\n", "\r\n", "\r", "\u00a0", "\u3000", "\u2003", "\u0085", "\u180e", "\u200b", "\x0b", "\x1c"]
    return "".join(
        random_source.choice(kinds) * random_source.choice([1, 1, 1, 2, 3, 7, 40])
        + random_source.choice(["", "", "a", "word", "1", "12", "!", "字", "é", "'s"])
        for _ in range(count)
    )


def any_characters(random_source: random.Random, count: int) -> str:
    blocks = [(0, 0x80), (0x80, 0x250), (0x250, 0x600), (0x600, 0x1100), (0x300, 0x370), (0x1100, 0x3400), (0x3400, 0x10000)]
    blocks += [(0x10000, 0x20000), (0x1F000, 0x1FB00), (0x20000, 0x110000), (0xF900, 0xFB00)]
    result = []
    while len(result) < count:
        low, high = random_source.choice(blocks)
        for _ in range(random_source.randint(1, 6)):
            c = random_source.randrange(low, high)
            if not 0xD800 <= c < 0xE000:
                result.append(chr(c))
        if random_source.random() < 0.2:
            result.append(random_source.choice([" ", "a", "'", "'ll", "9", "\n", "\u0301", "\u0345", "\u1161"]))
    return "".join(result)


def broken_bytes(random_source: random.Random, count: int) -> list[bytes]:
    fixed = [b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\x80\xbf"]
    fixed += [b"a\xe2\x28\xa1b", b"\xf0\x28\x8c\xbc", b"\xe0\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xc3\xa9\xc3", b"\x00\x01\x02"]
    result = list(fixed)
    for _ in range(count):
        data = bytearray(random_source.choice(SENTENCES).encode())
        for _ in range(random_source.randint(1, 8)):
            at = random_source.randrange(len(data))
            kind = random_source.randrange(3)
            if kind == 0:
                data[at] = random_source.randrange(256)
            elif kind == 1:
                del data[at]
            else:
                data[at:at] = random_source.choice(fixed)
        result.append(bytes(data))
        result.append(random_source.randbytes(random_source.randint(1, 60)))
    return result


def split(text: str, random_source: random.Random, largest: int) -> list[str]:
    parts, at = [], 0
    while at < len(text):
        size = random_source.randint(1, largest)
        parts.append(text[at : at + size])
        at += size
    return parts


def documents(seed: int, scale: float) -> dict[str, list[bytes]]:
    """Returns the documents of each kind of text. About 2 MB at scale 1."""
    source = random.Random(seed)
    every = split("".join(chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000), random.Random(1), 4_000)
    source.shuffle(every)
    k = lambda number: int(number * scale)
    texts = {
        "prose": split(prose(k(350_000)), source, 20_000),
        "code": split(code(k(350_000)), source, 20_000),
        "scripts": split(scripts(source, k(150_000)), source, 5_000) + SENTENCES,
        "ideographs": split(ideographs(source, k(60_000)), source, 3_000),
        "spaces": split(spaces(source, k(6_000)), source, 300),
        "any characters": split(any_characters(source, k(40_000)), source, 200),
        "every character": ["'" + c for c in "sStTmMdDrRvVlL\u017f\u212a"] + every[: max(1, k(len(every) // 12))],
        "repeats": ["", " ", "\n", "a" * 3000, " " * 3000, "\n" * 500, "ab" * 1500, "=" * 700, "字" * 500, "é" * 300]
        + ["\u0301" * 300, "1" * 1000, "👍" * 200, "<|endoftext|>" * 20, "\u0315\u0300\u05ae\u0345" * 50],
    }
    result = {kind: [text.encode() for text in parts] for kind, parts in texts.items()}
    result["broken bytes"] = broken_bytes(source, k(1_500))
    return result
