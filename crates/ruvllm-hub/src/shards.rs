//! Names of models in several files: `NAME-00001-of-00003.gguf`.

/// The most files of one model.
pub(crate) const N_SHARDS_MAX: u32 = 1000;

/// Name of a file that is a part of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardName {
    /// Name before the numbers, with its folders.
    pub base: String,
    /// Number of the part, from 1.
    pub no: u32,
    /// Number of parts.
    pub count: u32,
}

impl ShardName {
    /// Reads the name of a file, with or without `.gguf`; `None` if it is no part of several.
    pub fn parse(file: &str) -> Option<ShardName> {
        let stem = file.strip_suffix(".gguf").unwrap_or(file);
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (base, no) = rest.rsplit_once('-')?;
        let number = |digits: &str| {
            (digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse::<u32>().ok())?
        };
        let (no, count) = (number(no)?, number(count)?);
        (no >= 1 && no <= count && count >= 2).then(|| ShardName { base: base.to_owned(), no, count })
    }

    /// Returns the name of another part, with `.gguf`.
    pub fn part(&self, no: u32) -> String {
        format!("{}{}.gguf", self.base, suffix(no, self.count))
    }
}

/// Returns the end of a part's name, without `.gguf`.
pub(crate) fn suffix(no: u32, count: u32) -> String {
    format!("-{no:05}-of-{count:05}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_told_from_whole_files() {
        let name = ShardName::parse("d/m-q4-00002-of-00003.gguf").expect("a part");
        assert_eq!((name.base.as_str(), name.no, name.count), ("d/m-q4", 2, 3));
        assert_eq!(name.part(3), "d/m-q4-00003-of-00003.gguf");
        for whole in
            ["m.gguf", "m-00001.gguf", "m-00001-of-00001.gguf", "m-00004-of-00003.gguf", "m-1-of-3.gguf", "-of-"]
        {
            assert_eq!(ShardName::parse(whole), None, "{whole}");
        }
    }
}
