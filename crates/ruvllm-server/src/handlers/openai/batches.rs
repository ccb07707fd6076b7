//! `/v1/files` and `/v1/batches`: requests in a file, answered while nobody else asks.

use std::fs::File;
use std::io::Read as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::{HeaderValue, Method, Response, StatusCode, header};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use multer::{Constraints, Multipart, SizeLimit};
use ruvllm_api::error::ApiError;
use ruvllm_api::fields::{Field, Kind, optional, required};
use ruvllm_server_state::batches::{Batches, ENDPOINTS as ASKED, FILE_BYTES_MAX, NewBatch};
use ruvllm_server_state::gate::offload;
use ruvllm_server_state::server::Server;
use serde_json::{Value, json};

use super::stored::conversations::labels;
use super::stored::pages::{self, Page};
use crate::call::response::json_response;
use crate::call::{Endpoint, Handler, HandlerFuture, RawCall, ServerCall};

const GET: Endpoint = Endpoint { method: Method::GET, ..Endpoint::POST };
const DELETE: Endpoint = Endpoint { method: Method::DELETE, ..Endpoint::POST };

/// Bytes of a file that are read at once.
const PIECE_BYTES: usize = 64 << 10;

const FILE: &[&str] = &["id", "object", "bytes", "created_at", "filename", "purpose"];
const BATCH: &[&str] =
    &["id", "object", "endpoint", "input_file_id", "status", "created_at", "request_counts", "metadata"];
const LISTED: &[&str] = &["object", "data", "first_id", "last_id", "has_more"];

/// The form of an upload.
const UPLOAD: &[Field] = &[
    required("file", Kind::Text, "the file, as a part of the form with a file name: a JSON object in each line"),
    required("purpose", Kind::Word(&["batch"]), "what it is for"),
];

const NEW: &[Field] = &[
    required("input_file_id", Kind::Text, "the uploaded file; each line has custom_id, method, url and body"),
    required("endpoint", Kind::Word(&ASKED), "the path that all requests ask"),
    required("completion_window", Kind::Word(&["24h"]), "time after which the rest expires"),
    optional(
        "metadata",
        Kind::Map(&Kind::Text),
        "labels that come back with it: up to 16, of 64 bytes, and 512 of the value",
    ),
];

/// The endpoints.
pub(crate) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        path: "/v1/files",
        summary: "Keeps a file of requests for a batch; the body is a form (multipart/form-data)",
        fields: &[UPLOAD],
        answers: FILE,
        run: Handler::Form(upload),
        ..Endpoint::POST
    },
    Endpoint {
        path: "/v1/files",
        summary: "Lists the caller's files, uploads and answers of batches",
        query: pages::LIST,
        answers: LISTED,
        run: Handler::Server(list_files),
        ..GET
    },
    Endpoint {
        path: "/v1/files/{file_id}",
        summary: "Describes a file",
        answers: FILE,
        run: Handler::Server(file),
        ..GET
    },
    Endpoint {
        path: "/v1/files/{file_id}",
        summary: "Deletes a file",
        answers: &["id", "object", "deleted"],
        run: Handler::Server(delete),
        ..DELETE
    },
    Endpoint {
        path: "/v1/files/{file_id}/content",
        summary: "Returns the content of a file",
        run: Handler::Server(content),
        ..GET
    },
    Endpoint {
        path: "/v1/batches",
        summary: "Answers the requests of a file while nobody else asks",
        fields: &[NEW],
        answers: BATCH,
        run: Handler::Server(create),
        ..Endpoint::POST
    },
    Endpoint {
        path: "/v1/batches",
        summary: "Lists the caller's batches",
        query: pages::LIST,
        answers: LISTED,
        run: Handler::Server(list_batches),
        ..GET
    },
    Endpoint {
        path: "/v1/batches/{batch_id}",
        summary: "Describes a batch",
        answers: BATCH,
        run: Handler::Server(batch),
        ..GET
    },
    Endpoint {
        path: "/v1/batches/{batch_id}/cancel",
        summary: "Takes no more requests of a batch; those that are at work end",
        fields: &[&[]],
        answers: BATCH,
        run: Handler::Server(cancel),
        ..Endpoint::POST
    },
];

/// Returns the files and batches of a server.
///
/// # Errors
/// 404: it has no folder for them.
fn batches(server: &Server) -> Result<Arc<Batches>, ApiError> {
    server.batches.clone().ok_or_else(|| {
        let line = "the server keeps no files and batches; start it with --batch-dir DIR";
        ApiError::new(StatusCode::NOT_FOUND, line).code("no_batches")
    })
}

fn ok(value: &Value) -> Result<Response<Body>, ApiError> {
    Ok(json_response(StatusCode::OK, value))
}

fn upload(call: RawCall) -> HandlerFuture {
    Box::pin(async move {
        let batches = batches(&call.server)?;
        let bad = |error: multer::Error| match error {
            multer::Error::FieldSizeExceeded { .. } | multer::Error::StreamSizeExceeded { .. } => {
                let line = format!("a file has at most {FILE_BYTES_MAX} bytes; divide it");
                ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, line)
            }
            error => ApiError::bad("file", format!("the body is no form with a file: {error}")),
        };
        let kind = call.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let boundary = multer::parse_boundary(kind).map_err(|_| {
            let line = format!("the body's content type is '{kind}'; send multipart/form-data");
            ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, line)
        })?;
        let sizes = SizeLimit::new().whole_stream(FILE_BYTES_MAX + (1 << 20)).for_field("purpose", 64);
        let form = Constraints::new().allowed_fields(vec!["purpose", "file"]).size_limit(sizes);
        let mut form = Multipart::with_constraints(call.body.into_data_stream(), boundary, form);
        let limit = call.server.options().body_timeout;
        let slow = |_| {
            let line = format!("nothing of the body came for {} s", limit.as_secs());
            ApiError::new(StatusCode::REQUEST_TIMEOUT, line)
        };
        let (mut purpose, mut kept) = (None, None);
        while let Some(mut part) = tokio::time::timeout(limit, form.next_field()).await.map_err(slow)?.map_err(bad)? {
            if part.name() == Some("purpose") {
                purpose = Some(tokio::time::timeout(limit, part.text()).await.map_err(slow)?.map_err(bad)?);
                continue;
            }
            let name: String = part.file_name().unwrap_or("file.jsonl").chars().take(255).collect();
            let mut upload = batches.upload(&call.tenant.name)?;
            while let Some(bytes) = tokio::time::timeout(limit, part.chunk()).await.map_err(slow)?.map_err(bad)? {
                upload.write(&bytes)?;
            }
            kept = Some((upload, name));
        }
        if purpose.as_deref() != Some("batch") {
            return Err(ApiError::bad("purpose", "'purpose' is 'batch'; files for other ends are not kept here"));
        }
        let Some((upload, name)) = kept else { return Err(ApiError::bad("file", "the form has no part 'file'")) };
        ok(&upload.finish(&name, "batch")?)
    })
}

/// Returns a page of objects, the newest first unless another order is asked for.
fn page(call: &ServerCall, mut newest_first: Vec<Value>) -> Result<Response<Body>, ApiError> {
    let mut page = Page::of(&call.body);
    if page.is_ascending {
        newest_first.reverse();
    }
    for object in newest_first {
        let id = object["id"].as_str().unwrap_or_default().to_owned();
        if !page.take(&id, || object) {
            break;
        }
    }
    let (items, has_more) = page.end()?;
    ok(&pages::listed(items, has_more))
}

fn list_files(call: ServerCall) -> HandlerFuture {
    Box::pin(async move {
        let mut files = batches(&call.server)?.files(&call.tenant.name);
        files.reverse();
        page(&call, files)
    })
}

fn file(call: ServerCall) -> HandlerFuture {
    Box::pin(async move { ok(&batches(&call.server)?.file(&call.tenant.name, &call.part_behind("files"))?) })
}

fn delete(call: ServerCall) -> HandlerFuture {
    Box::pin(async move {
        let id = call.part_behind("files");
        batches(&call.server)?.delete(&call.tenant.name, &id)?;
        ok(&json!({ "id": id, "object": "file", "deleted": true }))
    })
}

fn content(call: ServerCall) -> HandlerFuture {
    Box::pin(async move {
        let path = batches(&call.server)?.content(&call.tenant.name, &call.part_behind("files"))?;
        let cannot = |error: std::io::Error| {
            let line = format!("the file cannot be read: {}", error.kind());
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, line)
        };
        let file = File::open(path).map_err(cannot)?;
        let n_left = file.metadata().map_err(cannot)?.len();
        let mut response = Response::new(Body::new(FileBody { file, n_left }));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/jsonl"));
        Ok(response)
    })
}

/// The content of a file, read in pieces as the client takes them.
struct FileBody {
    file: File,
    n_left: u64,
}

impl http_body::Body for FileBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        if self.n_left == 0 {
            return Poll::Ready(None);
        }
        let mut piece = vec![0; PIECE_BYTES.min(usize::try_from(self.n_left).unwrap_or(PIECE_BYTES))];
        let read = self.file.read_exact(&mut piece);
        self.n_left -= piece.len() as u64;
        Poll::Ready(Some(read.map(|()| Frame::data(piece.into()))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.n_left)
    }
}

fn create(call: ServerCall) -> HandlerFuture {
    Box::pin(async move {
        let (batches, metadata) = (batches(&call.server)?, labels(&call.body)?);
        let make = move || {
            let text = |name: &str| call.body.text(name).unwrap_or_default();
            let new = NewBatch { endpoint: text("endpoint"), input_file_id: text("input_file_id"), metadata };
            batches.create(&call.tenant.name, new)
        };
        ok(&offload(make).await?)
    })
}

fn list_batches(call: ServerCall) -> HandlerFuture {
    Box::pin(async move {
        let all = batches(&call.server)?.batches(&call.tenant.name);
        page(&call, all)
    })
}

fn batch(call: ServerCall) -> HandlerFuture {
    Box::pin(async move { ok(&batches(&call.server)?.batch(&call.tenant.name, &call.part_behind("batches"))?) })
}

fn cancel(call: ServerCall) -> HandlerFuture {
    Box::pin(async move {
        let (batches, id) = (batches(&call.server)?, call.part_behind("batches"));
        ok(&offload(move || batches.cancel(&call.tenant.name, &id)).await?)
    })
}
