//! The page at `/`: a chat and what the server does, from the binary, with nothing fetched from elsewhere.

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use axum::routing::get;

/// What the page may do: run its own script and ask this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The files, by path.
const FILES: [(&str, &str, &str); 4] = [
    ("/", "text/html; charset=utf-8", include_str!("index.html")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("page.js")),
    ("/decisions.js", "text/javascript; charset=utf-8", include_str!("decisions.js")),
    ("/page.css", "text/css; charset=utf-8", include_str!("page.css")),
];

/// Adds the page to a router.
pub(crate) fn add<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    FILES.into_iter().fold(router, |router, (path, ty, text)| router.route(path, get(async move || file(ty, text))))
}

fn file(ty: &'static str, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    for (name, value) in [
        (header::CONTENT_TYPE, ty),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
