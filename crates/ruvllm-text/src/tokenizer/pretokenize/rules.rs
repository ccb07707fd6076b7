//! The table of rules: which passes cut text for a name in `tokenizer.ggml.pre`.

use super::Rule;
use super::Spaces::{Cascade, GiveLast, GiveLastInLine, Keep};
use super::Step::{self, Match, Threes};

const RULE: Rule = Rule {
    names: &[],
    steps: &[],
    ignore_merges: false,
    add_bos: false,
    no_bos: false,
    sentencepiece: false,
    newline_tokens: false,
};

const GPT2: Step = Match(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+", GiveLast);
const DIGIT: Step = Match(r"\p{N}", Keep);
const ONE_TO_THREE: Step = Match(r"\p{N}{1,3}", Keep);
const CLASSIC: &[Step] = &[GPT2];
const CODE: &[Step] = &[DIGIT, GPT2];
/// `(?i:'s|'t|…)` as llama.cpp has it: only ASCII letters.
macro_rules! contraction {
    () => {
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    };
}
/// The GPT-4 shape: contractions, words, numbers, everything else, line ends, white space.
macro_rules! gpt4 {
    ($digits:literal) => {
        concat!(contraction!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|", $digits, r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+")
    };
}
/// The o200k shape: case changes split words, contractions stay with them. `$c`: what makes a word, `$up`: the class of
/// all but small ASCII letters, `$low`: of all but capitals.
macro_rules! o200k {
    ($up:literal, $low:literal, $contraction:expr, $digits:literal) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?",
            $up,
            "*",
            $low,
            "+",
            $contraction,
            r"|[^\r\n\p{L}\p{N}]?",
            $up,
            "+",
            $low,
            "*",
            $contraction,
            "|",
            $digits,
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
        )
    };
}
/// The DeepSeek 3 shape.
macro_rules! deepseek3 {
    ($tail:literal) => {
        concat!(
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"##,
            $tail
        )
    };
}
macro_rules! han {
    () => {
        concat!(
            r"\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B73F}\x{2B740}-\x{2B81F}",
            r"\x{2B820}-\x{2CEAF}\x{2CEB0}-\x{2EBEF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}"
        )
    };
}

const LLAMA3: Step = Match(gpt4!(r"\p{N}{1,3}"), GiveLastInLine);
const QWEN2: Step = Match(gpt4!(r"\p{N}"), GiveLastInLine);
const DEEPSEEK3: &[Step] = &[
    ONE_TO_THREE,
    Match(r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+", Keep),
    Match(deepseek3!(r"[\r\n]*|\s*[\r\n]+|\s+"), GiveLastInLine),
];
const LINES: Step = Match(r"[^\n]+|\n+", Keep);
const BLOOM: Step = Match(r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+", Keep);
/// Chinese, Japanese and Korean as DeepSeek's first models have it; white space in those ranges does not count.
const CJK: Step = Match(r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}&&\S]+", Keep);

/// Rules of all names.
pub(super) const RULES: &[Rule] = &[
    Rule {
        names: &["", "default"],
        steps: &[Match(r"[\p{P}\$\+<=>\^~\|]+", Keep), GPT2, Match(r"\p{N}+", Keep), Match(r"[0-9][0-9][0-9]", Keep)],
        ..RULE
    },
    Rule {
        names: &[
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        steps: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
        ..RULE
    },
    Rule { names: &["dbrx", "smaug-bpe"], steps: &[LLAMA3], ..RULE },
    Rule { names: &["chatglm-bpe"], steps: &[LLAMA3], no_bos: true, ..RULE },
    Rule { names: &["glm4", "glm5"], steps: &[LLAMA3], no_bos: true, ignore_merges: true, ..RULE },
    Rule {
        names: &["minicpm5"],
        steps: &[ONE_TO_THREE, Match(gpt4!(r"\p{N}+"), GiveLastInLine)],
        ignore_merges: true,
        ..RULE
    },
    Rule { names: &["jais-2"], steps: &[Match(gpt4!(r"\p{N}{1,3}"), Cascade)], ..RULE },
    Rule {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        steps: &[QWEN2],
        ..RULE
    },
    Rule {
        names: &["qwen35"],
        steps: &[Match(
            concat!(
                contraction!(),
                r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
            ),
            GiveLastInLine,
        )],
        ..RULE
    },
    Rule { names: &["laguna"], steps: &[LINES, QWEN2], ..RULE },
    Rule {
        names: &["ufakzeka"],
        steps: &[Match(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+", GiveLastInLine)],
        ..RULE
    },
    Rule {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        steps: &[Match(
            concat!(
                r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])",
                r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+"
            ),
            GiveLastInLine,
        )],
        ..RULE
    },
    Rule {
        names: &["seed-coder"],
        steps: &[Match(
            concat!(contraction!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+"),
            GiveLastInLine,
        )],
        ..RULE
    },
    Rule {
        names: &["exaone-moe"],
        steps: &[Match(
            concat!(
                contraction!(),
                r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+"
            ),
            GiveLastInLine,
        )],
        ..RULE
    },
    Rule {
        names: &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
        ],
        steps: CLASSIC,
        ..RULE
    },
    Rule {
        names: &["starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"],
        steps: CODE,
        ..RULE
    },
    Rule {
        names: &["falcon"],
        steps: &[Match(r"[\p{P}\$\+<=>\^~\|`]+", Keep), GPT2, Match(r"[0-9][0-9][0-9]", Keep)],
        ..RULE
    },
    Rule {
        names: &["chameleon"],
        steps: &[
            Match(r"<sentinel:[0-9]+>", Keep),
            Match(r"(?:IMGIMG)[A-I]{1,4}Z", Keep),
            Match(r"[\t\n]|    |  ", Keep),
            DIGIT,
            Match(r"[\p{P}!-/:-@\[-`{-~]", Keep),
            GPT2,
        ],
        add_bos: true,
        ..RULE
    },
    Rule { names: &["poro-chat", "bloom", "gpt3-finnish"], steps: &[BLOOM], ..RULE },
    Rule { names: &["viking"], steps: &[BLOOM, DIGIT], ..RULE },
    Rule {
        names: &["deepseek-llm"],
        steps: &[
            Match(r"[\r\n]", Keep),
            Match(DEEPSEEK_LETTERS, Keep),
            Match(r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3001}-\x{3002}]+", Keep),
            Match(r"\s+$", Keep),
            CJK,
            Match(r"\p{N}+", Keep),
        ],
        ..RULE
    },
    Rule {
        names: &["deepseek-coder"],
        steps: &[Match(r"[\r\n]", Keep), Match(r"\s?\p{L}+", Keep), Match(r"\s?\p{P}+", Keep), CJK, DIGIT],
        ..RULE
    },
    Rule { names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], steps: DEEPSEEK3, ..RULE },
    Rule {
        names: &["spark2_5"],
        steps: &[DEEPSEEK3[0], DEEPSEEK3[1], Match(deepseek3!(r"|[\r\n]|\s+"), GiveLast), DIGIT],
        ..RULE
    },
    Rule {
        names: &["afmoe"],
        steps: &[
            Threes(r"\p{N}+"),
            Match(
                concat!(
                    r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{8C48}-\x{FAFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF}\x{FF65}-\x{FF9F}",
                    r"\x{2F00}-\x{2FDF}\x{E40}-\x{E7F}\x{E80}-\x{EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+"
                ),
                Keep,
            ),
            DEEPSEEK3[2],
        ],
        ..RULE
    },
    Rule {
        names: &["youtu"],
        steps: &[
            Match(
                concat!(
                    r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C}\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+",
                    r"|[\x{3105}-\x{312F}]+|[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"
                ),
                Keep,
            ),
            Match(o200k!(r"[\p{L}\p{M}]", r"[\p{L}\p{M}]", concat!(contraction!(), "?"), r"\p{N}"), GiveLastInLine),
        ],
        ignore_merges: true,
        ..RULE
    },
    Rule {
        names: &["tekken"],
        steps: &[Match(o200k!(r"[\p{L}--[a-z]]", r"[\p{L}--[A-Z]]", "", r"\p{N}"), GiveLastInLine)],
        ignore_merges: true,
        add_bos: true,
        ..RULE
    },
    Rule {
        names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        steps: &[Match(
            o200k!(r"[\p{L}--[a-z]]", r"[\p{L}--[A-Z]]", concat!(contraction!(), "?"), r"\p{N}{1,3}"),
            GiveLastInLine,
        )],
        ..RULE
    },
    Rule {
        names: &["granite-embed-multi-97m"],
        steps: &[Match(
            o200k!(r"[[\p{L}\p{M}]--[a-z]]", r"[[\p{L}\p{M}]--[A-Z]]", concat!(contraction!(), "?"), r"\p{N}{1,3}"),
            GiveLastInLine,
        )],
        ignore_merges: true,
        ..RULE
    },
    Rule {
        names: &["tiny_aya", "cohere2moe"],
        steps: &[
            Threes(r"\p{N}+"),
            Match(
                o200k!(r"[\p{L}\p{M}]", r"[\p{L}\p{M}]", concat!(contraction!(), "?"), r"\p{N}{1,3}"),
                GiveLastInLine,
            ),
        ],
        ..RULE
    },
    Rule { names: &["superbpe"], steps: &[Match(r"\p{N}+", Keep), Threes(r"[0-9]+")], ..RULE },
    Rule {
        names: &["kimi-k2"],
        steps: &[Match(
            concat!(
                "[",
                han!(),
                r"]+|[^\r\n\p{L}\p{N}]?[\p{L}--[",
                han!(),
                "]]+",
                contraction!(),
                r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
            ),
            GiveLastInLine,
        )],
        ..RULE
    },
    Rule {
        names: &["gemma4", "granite-embed-multi-311m"],
        steps: &[LINES],
        add_bos: true,
        sentencepiece: true,
        newline_tokens: true,
        ..RULE
    },
    Rule { names: &["sarvam-moe"], steps: &[LINES], sentencepiece: true, ..RULE },
];

/// Letters of the cased scripts as DeepSeek's first tokenizers list them, after one optional white space.
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}",
    r"\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}",
    r"\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}",
    r"\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}",
    r"\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}",
    r"\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}",
    r"\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}",
    r"\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}",
    r"\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}",
    r"\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}",
    r"\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}",
    r"\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}",
    r"\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}",
    r"\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+",
);
