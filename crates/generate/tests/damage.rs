//! Damaged prompts. What a user would lose: a program that takes whatever is pasted into it.

use impasto_generate::prompt::Tokenizer;
use impasto_testkit::damage::Damage;

const PROMPTS: [&str; 6] = [
    "a (((house:1.3)) [on] a (hill:0.5), sun, (((sky))).",
    r"masterpiece, \(literal\] (best quality:1.2), [[blurry]], 1girl, don't, they're BREAK 8k uhd",
    "café, ΟΔΟΣ, İstanbul, straße, 中国人, 안녕, שלום, 👩🏽‍🚀 🇩🇪 e\u{301}\u{327}",
    "the cat, the dog, the house and the sea and the sky and the sun and the moon and a star and a tree and a hill and a road and a car",
    "<|startoftext|>a<|ENDOFTEXT|>!! <|endoftext|",
    "",
];

const WORDS: [&str; 44] = [
    "(",
    ")",
    "[",
    "]",
    "\\",
    ":",
    ":1.3)",
    ":-0.5)",
    ": .5 )",
    ":9999999999999)",
    ":1e9)",
    ":1.2.3)",
    "BREAK",
    " BREAK ",
    ",",
    ", ",
    "'",
    "'s",
    "'RE",
    " ",
    "\n",
    "\u{a0}",
    "\u{3000}",
    "\0",
    "\u{1c}",
    "\u{85}",
    "\u{200d}",
    "\u{fe0f}",
    "\u{301}",
    "\u{327}",
    "\u{fffd}",
    "İ",
    "ß",
    "Σ",
    "ﬁ",
    "😀",
    "猫",
    "각",
    "\u{1100}\u{1161}",
    "Å",
    "<|endoftext|>",
    "!",
    "½",
    "supercalifragilistic",
];

impasto_testkit::trial! {
    fn damaged_prompts_are_still_read(cases: u64 = 20_000, 600_000) {
        let tokenizers = [Tokenizer::clip(), Tokenizer::clip_padded_with_zero()];
        let words = WORDS.map(str::as_bytes);
        Damage::run(cases, |damage| {
            let mut bytes = damage.of(&PROMPTS).as_bytes().to_vec();
            (0..=damage.below(12)).for_each(|_| damage.bytes(&mut bytes, &words));
            let prompt = String::from_utf8_lossy(&bytes);
            let tokenizer = &tokenizers[damage.below(2)];
            crate::checks::check(tokenizer, &prompt, if damage.below(4) == 0 { 3 + damage.below(30) } else { 77 });
        });
    }
}
