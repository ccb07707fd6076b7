//! The page at `/`: an app of plain files out of the binary, with nothing fetched from elsewhere.
//!
//! `dist` is built of `crates/ruvllm-server/page` by `cargo xtask codegen page`, and committed. Files are packed once, when they are
//! first asked for, and have tags, so a browser that has them is told so.

use std::io::Write as _;
use std::sync::OnceLock;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use axum::routing::get;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest as _, Sha256};

/// What the page may do: run its own scripts, have its own styles, ask this server. Texts become elements through one purifier
/// alone.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types dompurify";

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The files.
static FILES: [File; 7] = [
    File::new("/", "text/html; charset=utf-8", include_bytes!("dist/index.html")),
    File::new("/page/app.js", SCRIPT, include_bytes!("dist/app.js")),
    File::new("/page/app.css", "text/css; charset=utf-8", include_bytes!("dist/app.css")),
    File::new("/page/highlight.js", SCRIPT, include_bytes!("dist/highlight.js")),
    File::new("/page/math.js", SCRIPT, include_bytes!("dist/math.js")),
    File::new("/page/icon.svg", "image/svg+xml", include_bytes!("dist/icon.svg")),
    File::new("/page/licences.txt", "text/plain; charset=utf-8", include_bytes!("dist/licences.txt")),
];

/// A file of the page.
struct File {
    path: &'static str,
    ty: &'static str,
    plain: &'static [u8],
    sent: OnceLock<Sent>,
}

/// A file as it is sent.
struct Sent {
    gzip: Bytes,
    /// Tags of the plain and of the packed bytes.
    tags: [HeaderValue; 2],
}

impl File {
    const fn new(path: &'static str, ty: &'static str, plain: &'static [u8]) -> File {
        File { path, ty, plain, sent: OnceLock::new() }
    }

    fn sent(&self) -> &Sent {
        self.sent.get_or_init(|| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
            let gzip = encoder.write_all(self.plain).and_then(|()| encoder.finish()).expect("memory is written");
            let hash = hex::encode(&Sha256::digest(self.plain)[..12]);
            let tag = |end: &str| HeaderValue::from_str(&format!("\"{hash}{end}\"")).expect("digits are a header");
            Sent { gzip: gzip.into(), tags: [tag(""), tag("-gzip")] }
        })
    }

    /// Answers a request for it: packed where the client reads that, and with 304 where it has the same already.
    fn answer(&self, headers: &HeaderMap) -> Response<Body> {
        let (sent, is_packed) = (self.sent(), takes_gzip(headers));
        let tag = &sent.tags[usize::from(is_packed)];
        let has_it =
            listed(headers, header::IF_NONE_MATCH).any(|one| one == "*" || one.trim_start_matches("W/") == *tag);
        let body = match (has_it, is_packed) {
            (true, _) => Body::empty(),
            (false, true) => Body::from(sent.gzip.clone()),
            (false, false) => Body::from(self.plain),
        };
        let mut response = Response::new(body);
        *response.status_mut() = if has_it { StatusCode::NOT_MODIFIED } else { StatusCode::OK };
        let fields = response.headers_mut();
        for (name, value) in [
            (header::CONTENT_TYPE, self.ty),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
            (header::CACHE_CONTROL, "no-cache"),
            (header::VARY, "accept-encoding"),
        ] {
            fields.insert(name, HeaderValue::from_static(value));
        }
        fields.insert(header::ETAG, tag.clone());
        if is_packed && !has_it {
            fields.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        response
    }
}

/// Returns the parts of a header that is a list with commas between them.
fn listed(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    headers
        .get_all(name)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
}

fn takes_gzip(headers: &HeaderMap) -> bool {
    listed(headers, header::ACCEPT_ENCODING).any(|part| {
        let (name, quality) = part.split_once(';').unwrap_or((part, ""));
        let is_refused = quality.trim().strip_prefix("q=").is_some_and(|q| q.parse() == Ok(0.0));
        matches!(name.trim(), "gzip" | "*") && !is_refused
    })
}

/// Adds the page to a router.
pub(crate) fn add<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    FILES.iter().fold(router, |router, file| {
        router.route(file.path, get(async move |headers: HeaderMap| file.answer(&headers)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(fields: &[(HeaderName, &str)]) -> Response<Body> {
        let value = |text: &str| HeaderValue::from_str(text).expect("a header");
        FILES[1].answer(&fields.iter().map(|(name, text)| (name.clone(), value(text))).collect())
    }

    #[test]
    fn files_are_packed_for_those_who_read_that() {
        for (accepted, is_packed) in [
            ("gzip", true),
            ("br, gzip;q=0.5", true),
            ("*", true),
            ("gzip;q=0", false),
            ("gzip; q=0.0", false),
            ("br", false),
            ("", false),
        ] {
            let response = answer(&[(header::ACCEPT_ENCODING, accepted)]);
            assert_eq!(response.headers().contains_key(header::CONTENT_ENCODING), is_packed, "{accepted}");
        }
    }

    #[test]
    fn who_has_a_file_is_told_so() {
        let packed = (header::ACCEPT_ENCODING, "gzip");
        let tag = answer(&[packed.clone()]).headers()[header::ETAG].to_str().expect("text").to_owned();
        let weak = format!("\"other\", W/{tag}");
        for (given, status) in [(&*tag, 304), (&weak, 304), ("*", 304), ("\"other\"", 200)] {
            let response = answer(&[packed.clone(), (header::IF_NONE_MATCH, given)]);
            assert_eq!(response.status().as_u16(), status, "{given}");
            assert!(response.headers().contains_key(header::CONTENT_SECURITY_POLICY));
        }
        // The plain bytes are another representation.
        assert_eq!(answer(&[(header::IF_NONE_MATCH, &tag)]).status(), 200);
    }
}
