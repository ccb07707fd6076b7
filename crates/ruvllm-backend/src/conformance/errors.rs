//! Errors: a call that cannot be computed is refused, and nothing has changed then.

use super::{Case, compare, open, rows};
use crate::{BackendErrorKind, LogitRows, Segment, SeqId, TokenModel};

pub(super) fn check(model: &mut dyn TokenModel, case: &Case<'_>, whole: &[f32]) {
    let (seq, other) = (open(model), open(model));
    let info = model.info().clone();
    rows(model, seq, &case.tokens[..8], LogitRows::None);
    let last = LogitRows::Last;
    let segment = |seq, tokens| Segment { seq, tokens, logits: last };
    let outside = [case.tokens[0], info.n_vocab as u32];
    let too_many = vec![case.tokens[0]; info.n_ctx - 7];
    let good = &case.tokens[8..10];
    let closed = SeqId(info.n_seq_max);
    let cases: [(&str, Vec<Segment<'_>>, BackendErrorKind); 6] = [
        ("a token outside the vocabulary", vec![segment(seq, &outside)], BackendErrorKind::Prompt),
        ("a segment without tokens", vec![segment(seq, &[])], BackendErrorKind::Prompt),
        ("a sequence that stands twice", vec![segment(seq, good), segment(seq, good)], BackendErrorKind::Options),
        ("a sequence that is not open", vec![segment(seq, good), segment(closed, good)], BackendErrorKind::Options),
        ("more than the context", vec![segment(seq, &too_many)], BackendErrorKind::ContextLength),
        ("a wrong segment behind a right one", vec![segment(other, good), segment(seq, &[])], BackendErrorKind::Prompt),
    ];
    for (what, segments, kind) in cases {
        let error = model.forward(&segments).map(drop).expect_err(what);
        assert_eq!(error.kind(), kind, "{what}: {error}");
        assert!(!error.to_string().contains('\n'), "{what} is told in one line: {error}");
        assert_eq!((model.n_tokens(seq), model.n_tokens(other)), (8, 0), "{what}: nothing was computed");
    }
    let found = rows(model, seq, &case.tokens[8..], LogitRows::All);
    compare(model, "after errors", whole, 8, &found, case.tolerances.chunks);
    model.close(seq);
    model.close(other);
}
