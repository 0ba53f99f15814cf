"""Prompts that people write, and prompts that have gone wrong in tokenizers. The fixtures of every tokenizer are made of these."""
import random
import unicodedata

# Hand-picked: what people write, and what has gone wrong in tokenisers.
PICKED = [
    "", " ", "a", "A", "\n", "\t\r\n ", "a photo of an astronaut riding a horse on mars",
    "masterpiece, best quality, 1girl, solo, long hair, looking at viewer, (smile:1.2), [blurry], highres, 8k uhd",
    "don't won't I'm you're we've they'll he'd it's 'tis rock'n'roll O'Brien 's 't 'RE 'Ve 'LL", "''s '''t !'s 's's 'sx s'", "'", "''", "'a", "’s it’s don’t",
    "1234567890", "3.14159", "1,000,000", "2023-11-15", "v1.5", "4k8K", "½ ¼ ² ³ ① ⑳ Ⅷ ⅷ ٣ ४ 五 〇 ๕", "１２３ ＡＢＣ ａｂｃ",
    "!!!", "...", "!?!?!?", "hello!", "hello !", "wow!! ok!", ",", ",,", ", ,", "a,b,c", "a, b, c,", "#$%&*+-/=@^_`{|}~", "<>", "<|", "|>", "--ar 16:9", "a_b_c", "___",
    "(((((", ")))))", "[[]]", "((a)) (b:1.3) [c] \\(d\\) {e}", "<lora:name:0.8>", "a|b", "[cat:dog:0.5]",
    "<|startoftext|>", "<|endoftext|>", "<|EndOfText|>", "a<|endoftext|>b", "<|startoftext|><|endoftext|>", "<|endoftext|", "|endoftext|>", "<start_of_text>", "<|endoftext|>!<|endoftext|>", "<|ſtartoftext|>",
    "İstanbul", "ISTANBUL ıstanbul", "straße STRASSE ẞ ß", "ΟΔΟΣ ΟΔΟΣ. Σ σ ς ὈΔΥΣΣΕΎΣ", "ǅ ǆ Ǆ ŉ ǰ ΐ", "ﬁ ﬂ ﬀ ﬃ ﬆ", "Å Å Å K Ω ℃ ℡", "ſ ſt",
    "café cafe\u0301 cafe\u0301\u0323", "e\u0301\u0302\u0303", "\u0301", "a\u0308\u0304 a\u0304\u0308", "Zalgo: Z\u0351\u036b\u0343a\u0321\u034al\u0322\u034fg\u0489o\u035c", "ạ̈", "\u1100\u1161\u11a8 각 \u1112\u1161\u11ab", "क्षत्रिय ज़ ज\u093c", "\u0958 \u2adc \ufb1d", "ồ o\u0302\u0300", "\u0344 \u0340 \u0341 \u0374 \u037e \u0387",
    "😀", "👩‍👩‍👧‍👦", "👩🏽‍🚀 👨🏿‍⚕️", "🏳️‍🌈 🏴‍☠️", "🇩🇪🇫🇷 🇩", "❤️ ❤", "1️⃣ #️⃣", "🤦🏼‍♂️x🤦", "☺︎ ☺️", "😂😂😂😂😂😂", "a😀b", "🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "中国人", "一只猫坐在椅子上", "東京タワー 夜景", "ひらがなカタカナ漢字", "ｶﾀｶﾅ ﾊﾟ", "안녕하세요 세계", "𠀀𠮷野家", "猫cat猫", "「猫」、『犬』。", "你好，世界！",
    "שלום עולם", "שָׁלוֹם", "مرحبا بالعالم", "اَلسَّلَامُ عَلَيْكُمْ", "\u202eabc\u202c", "\u200fabc\u200e", "سلام‌علیکم", "Привет, мир! Ё ё Й й", "Ὦ Ἀθῆναι", "ไทย ภาษา น้ำ", "हिन्दी नमस्ते", "தமிழ்", "ქართული ᲥᲐᲠᲗᲣᲚᲘ", "հայերեն ԵՒ և", "Ꭰꭰ ᏣᎳᎩ", "𝕳𝖊𝖑𝖑𝖔 𝒲 𝟘𝟙", "𐐀𐐨 𞤀𞤢", "ⓐⒶ", "ªº", "ʰʲˠ", "\u02b9 ʻokina",
    "a\x00b", "a\x01\x02\x1f\x7fb", "a\x80\x85\x9fb", "a\u00adb", "a\ufeffb", "\ufeffa", "a\u200bb", "a\u200cb\u200dc", "a\u2060b", "\ufffd", "a\ufffd\ufffdb", "\ue000 \uf8ff", "\uffff \ufffe \U0010ffff", "a\u00a0b", "a\u1680b\u2000c\u200ad\u2028e\u2029f\u202fg\u205fh\u3000i", "a\x1cb\x1dc\x1ed\x1fe", "a\vb\fc", "  many   spaces  ", "\u180e", "\u2800",
    "&amp; &lt;b&gt; &#39; &quot; &nbsp; &eacute;", "<b>bold</b>", "https://example.com/a?b=c&d=e#f", "user@example.com", "C:\\Users\\x", "\\", "\\\\", "“quoted” ‘single’ «guillemets» „low“", "—–‐‑‒―", "…", "©®™", "§¶†‡•", "€£¥₿", "∑∫√∞≠≤", "←↑→↓", "♥♦♣♠", "½x", "x²", "10°C", "5µm 5μm", "naïve façade Ærøskøbing Þór ŒUVRE", "Łódź Çeşme Ñandú Ōsaka Đà Nẵng", "ﷺ", "㍿ ㈱ ㎏", "Ǻ ǻ", "Dž", "ꙮ", "𒀀", "🀄", "⠓⠑", "a" * 300, "ab" * 100, "supercalifragilisticexpialidocious", "pneumonoultramicroscopicsilicovolcanoconiosis", "x" * 77, "," * 90, "é" * 64, "!" * 33, "0" * 40, "lowestlowerlow" * 12, "the " * 120, "word, " * 60,
]
# What only tokenizers of sequences care about: their special tokens, spaces of every kind and number, line ends, ligatures, other forms of letters.
SPECIAL = [
    "<|im_start|>user\na cat<|im_end|>\n<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n\n</think>\n\n", "<|endoftext|>", "<|im_start|", "a<|im_end|>b <|im_end|> c",
    "<think>", "</think>x", "<|vision_start|><|image_pad|><|vision_end|>", "<|IM_START|>", "</s>", "a</s>b", "<pad>", "<unk>", "<extra_id_0> and <extra_id_99>", "<extra_id_100>",
    " <extra_id_1> ", "<extra_id_0>x", "x <extra_id_0>", "＜pad＞", "▁", "▁a", "a▁b", "▁▁", " ▁ a", "a  b   c    d", "  a", "a  ", "\n\n\na\n \n b \n\n", "a \n", " \n a", "\r\n\r\na",
    "a\t\tb", "a \t b", "\u3000\u3000a\u3000", "a\u00a0\u00a0b", "ﬁne ﬂow ﬃ", "ＡＢＣ　ｄｅｆ", "①②③ ㍿ ℡ ™", "e\u0301e\u0301", "ﬁ\u0301", "½\u0301", "ｶﾞｷﾞ", "한\u1100\u1161", "🇩🇪🇫🇷\u0301",
    "’s ’t 'S 'T 'Re 'VE 'lL 'ſ 'ſx", "don't DON'T don’t", "x'll y'LL", "1234 12 a1b2", "١٢٣ ½ Ⅷ", "  1  2", "!!! ???\n\n!!!\r\n", " !a !a", "a...\n\nb", "(a:1.2)", "你好  世界\n", "日本 語 ", "\u200b \u200b", "\x00\x01", "a\u0085b\u2028c",
    "ǅ ĳ ŀ ŉ", "\ufb2a\ufb2b", "\u0344", "\U0001d15e", "a\u0327\u0301b", "X" * 60, "▁" * 10, " " * 70, "\n" * 70, "ab " * 300,
]
WORDS = """a the of in on with portrait landscape photo realistic cat dog castle sunset woman man eyes hair blue red green lighting cinematic
detailed masterpiece Trending ArtStation greg rutkowski oil painting watercolor 4k 8K HDR bokeh f/1.8 35mm cyberpunk steampunk anime 1girl
solo high-quality ultra-detailed best_quality don't it's I'm they're volumetric, intricate, elegant, smooth sharp focus illustration by and
artgerm alphonse mucha unreal engine octane render Łódź café naïve piñata Zürich Москва 東京 猫 안녕 שלום مرحبا 😀 👩‍🚀 🔥 ❤️ ... !! ?! (a) (b:1.2)
[c] ((d)) <lora:x:1> BREAK AND 2023 3.5 100% #1 @home""".split()
SPACES = [" "] * 12 + ["  ", "\n", "\t", "\u00a0", "\u3000", ", ", ",", "", "", "-", "_", ". "]
RANGES = [(0x20, 0x7F)] * 6 + [(0, 0x20), (0x7F, 0x250), (0x250, 0x370), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0xE80), (0x1E00, 0x2070),
    (0x2070, 0x2C00), (0x3000, 0x3130), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0xF900, 0xFFFD), (0x1F300, 0x1FA00), (0x10000, 0x10600), (0x1D400, 0x1D800), (0x20000, 0x20100)]


def settled(c):
    """Not a letter or mark that one Unicode version knows and another does not: the tables of tokenizers are of Unicode 9 and 16."""
    new_mark = unicodedata.combining(c) and not unicodedata.ucd_3_2_0.combining(c)
    return unicodedata.category(c) != "Cn" and not new_mark


def prompts(seed, sensible=450, wild=550):
    """All that were picked by hand, then random ones."""
    rng = random.Random(seed)
    yield from PICKED
    for _ in range(sensible):  # what people write
        words = [rng.choice(WORDS) for _ in range(rng.choice([3, 8, 20, 50]))]
        words = [w.upper() if rng.random() < 0.1 else w.title() if rng.random() < 0.1 else w for w in words]
        yield "".join(w + rng.choice(SPACES) for w in words)
    for _ in range(wild):  # what nobody writes
        kinds = [rng.choice(RANGES) for _ in range(rng.randint(1, 4))]
        yield "".join(filter(settled, (chr(rng.randrange(*rng.choice(kinds))) for _ in range(rng.randint(1, 40)))))
