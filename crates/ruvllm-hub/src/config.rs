//! The hub as a process is set up for it: address, cache folder, and where a token may stand.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::{fmt, io};

use crate::error::{HubError, HubErrorKind, io_reason};

/// Address of the Hugging Face hub.
pub const HF_ENDPOINT: &str = "https://huggingface.co";
/// The longest token.
const TOKEN_BYTES_MAX: usize = 4096;

/// Settings of the hub.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// Address of the hub, without a `/` at the end.
    pub endpoint: String,
    /// The hub's cache folder, which its own tools use as well; `None` where no home folder is known.
    pub cache_dir: Option<PathBuf>,
    /// Where a token may stand.
    pub token: TokenPlaces,
}

impl HubConfig {
    /// Returns settings for the hub at `endpoint`, or at the usual address.
    ///
    /// # Errors
    /// The address is none of HTTP, or holds a user or password, which would be shown with errors.
    pub fn new(endpoint: Option<&str>, cache_dir: Option<PathBuf>, token: TokenPlaces) -> Result<HubConfig, HubError> {
        let endpoint = endpoint.unwrap_or(HF_ENDPOINT).trim_end_matches('/').to_owned();
        if !(endpoint.starts_with("http://") || endpoint.starts_with("https://")) {
            return Err(HubError::usage("HF_ENDPOINT is no address of a hub; write https://HOST"));
        }
        if endpoint.split('/').nth(2).is_none_or(|host| host.is_empty() || host.contains('@')) {
            let line = "HF_ENDPOINT has no host, or a user in it; write https://HOST and give a token by HF_TOKEN";
            return Err(HubError::usage(line));
        }
        Ok(HubConfig { endpoint, cache_dir, token })
    }
}

/// Places where a token of the hub may stand, in the order in which they are looked at.
#[derive(Clone, Default)]
pub struct TokenPlaces {
    /// The token itself (`HF_TOKEN`).
    pub env: Option<String>,
    /// A file that holds it (`HF_TOKEN_PATH`), which takes the place of the standard one.
    pub file: Option<PathBuf>,
    /// The file that the hub's own login writes.
    pub standard: Option<PathBuf>,
}

impl fmt::Debug for TokenPlaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TokenPlaces { env, file, standard } = self;
        write!(f, "TokenPlaces {{ env: {}, file: {file:?}, standard: {standard:?} }}", env.is_some())
    }
}

impl TokenPlaces {
    /// Returns the token of the first place that has one.
    ///
    /// # Errors
    /// A place has something that is no token, or cannot be read; the line names the place and nothing of its content.
    pub(crate) fn find(&self) -> Result<Option<Token>, HubError> {
        if let Some(value) = &self.env {
            return Token::new(value, "HF_TOKEN".to_owned()).map(Some);
        }
        let Some(path) = self.file.as_ref().or(self.standard.as_ref()) else { return Ok(None) };
        let place = path.display().to_string();
        let mut text = String::new();
        match File::open(path).and_then(|file| file.take(TOKEN_BYTES_MAX as u64 + 2).read_to_string(&mut text)) {
            Ok(_) if text.trim().is_empty() => Ok(None),
            Ok(_) => Token::new(&text, place).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => {
                let line = format_args!("cannot read the token in {place}: {}", io_reason(&error));
                Err(HubError::new(HubErrorKind::Io, line))
            }
        }
    }

    /// Returns the places as a line names them.
    pub(crate) fn names(&self) -> String {
        let file = self.file.as_ref().or(self.standard.as_ref());
        file.map_or_else(|| "HF_TOKEN".to_owned(), |file| format!("HF_TOKEN or {}", file.display()))
    }
}

/// A token, which is never shown.
#[derive(Clone)]
pub(crate) struct Token {
    value: String,
    /// Where it stood.
    pub(crate) place: String,
}

impl Token {
    fn new(text: &str, place: String) -> Result<Token, HubError> {
        let value = text.trim().to_owned();
        let is_plain =
            !value.is_empty() && value.len() <= TOKEN_BYTES_MAX && value.chars().all(|c| c.is_ascii_graphic());
        match is_plain {
            true => Ok(Token { value, place }),
            false => Err(HubError::usage(format_args!("{place} holds no token: a token is one word of ASCII"))),
        }
    }

    /// Returns the header that carries it.
    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.value)
    }

    /// Returns a text of a server without the token, should it be in it.
    pub(crate) fn hide(&self, text: &str) -> String {
        text.replace(self.value.as_str(), "(the token)")
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token {{ place: {:?} }}", self.place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_place_with_a_token_counts() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (own, standard) = (dir.path().join("own"), dir.path().join("token"));
        let places = |env: Option<&str>, file: Option<&PathBuf>| TokenPlaces {
            env: env.map(str::to_owned),
            file: file.cloned(),
            standard: Some(standard.clone()),
        };
        let found = |places: TokenPlaces| places.find().expect("no error").map(|token| token.place);
        assert_eq!(found(places(None, None)), None);
        std::fs::write(&standard, "hf_standard\n").expect("a temporary folder is writable");
        assert_eq!(found(places(None, None)), Some(standard.display().to_string()));
        assert_eq!(found(places(None, Some(&own))), None);
        std::fs::write(&own, "hf_own").expect("a temporary folder is writable");
        assert_eq!(found(places(None, Some(&own))), Some(own.display().to_string()));
        assert_eq!(found(places(Some("hf_env"), Some(&own))).as_deref(), Some("HF_TOKEN"));
    }

    #[test]
    fn tokens_are_shown_nowhere() {
        let places = TokenPlaces { env: Some("hf_secret".to_owned()), ..TokenPlaces::default() };
        let token = places.find().expect("a token").expect("a token");
        assert!(!format!("{places:?} {token:?}").contains("secret"));
        assert_eq!(token.hide("no hf_secret here"), "no (the token) here");
        let places = TokenPlaces { env: Some("hf secret".to_owned()), ..TokenPlaces::default() };
        let line = places.find().expect_err("two words").to_string();
        assert!(line.starts_with("HF_TOKEN holds no token") && !line.contains("secret"), "{line}");
    }

    #[test]
    fn addresses_are_of_http_and_without_users() {
        let config = |endpoint| HubConfig::new(Some(endpoint), None, TokenPlaces::default());
        assert_eq!(config("http://a:1/").expect("an address").endpoint, "http://a:1");
        for wrong in ["ftp://a", "a", "http://", "http://me:pw@a"] {
            let line = config(wrong).expect_err(wrong).to_string();
            assert!(line.starts_with("HF_ENDPOINT") && !line.contains("pw"), "{line}");
        }
    }
}
