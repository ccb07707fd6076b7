//! Facts that a model was told by a key: corrections, and answers that are remembered.

use std::collections::HashMap;
use std::ops::Range;

use axum::http::StatusCode;
use ruvllm_engine::tokenizer::DecodeOptions;
use ruvllm_learning::{Correctness, Generation, Item};
use ruvllm_server_state::gate::offload;
use ruvllm_sona::bank::{Pattern, Select};
use serde_json::json;

use crate::call::learning::opened;
use crate::call::patterns::refused;
use crate::call::response::json_response;
use crate::call::{Call, HandlerFuture};

/// Items of the log, and patterns, that are looked through.
const N_LOOKED: usize = 2000;

/// Lists them, the newest first. Questions lie as text in patterns only: the log has hashes of their names.
pub(super) fn list(call: Call) -> HandlerFuture {
    Box::pin(async move {
        let tenant = opened(&call).await?;
        offload(move || {
            let kept = tenant.patterns()?.newest(N_LOOKED, &Select::default()).map_err(refused)?;
            let of_pattern = |(id, pattern): &(u64, Pattern)| {
                let question = (*id, pattern.task.clone());
                pattern.items.iter().map(move |item| (*item, question.clone())).collect::<Vec<_>>()
            };
            let questions: HashMap<u64, (u64, String)> = kept.iter().flat_map(of_pattern).collect();
            let (log, tokenizer) = (tenant.log(N_LOOKED)?, call.text()?.tokenizer());
            let rolled_back = log.items.iter().find(|(_, _, item)| matches!(item, Item::RolledBack { .. }));
            let present = present(&log.generations, log.generation, rolled_back.map(|(id, ..)| *id));
            let mut data = Vec::new();
            for (id, unix_ms, item) in &log.items {
                let Item::Corrected { answer, verdict, .. } = item else { continue };
                if present.iter().all(|range| !range.contains(id)) {
                    continue;
                }
                let (pattern, question) = questions.get(id).cloned().unzip();
                data.push(json!({
                    "item": id,
                    "at_ms": unix_ms,
                    "question": question,
                    "answer": tokenizer.decode(answer, DecodeOptions::default()).trim(),
                    "right": *verdict == Correctness::Right,
                    "pattern": pattern,
                    "can_undo": item.has_effect(),
                }));
            }
            Ok(json_response(StatusCode::OK, &json!({ "object": "list", "data": data })))
        })
        .await
    })
}

/// Returns the ids of the items that what is known now is made of: those of the generation it came from and of its parents, and
/// those since. `rolled_back` is the newest item that went back to a generation.
fn present(generations: &[Generation], generation: u64, rolled_back: Option<u64>) -> Vec<Range<u64>> {
    let ends = generations.iter().map(|generation| generation.end);
    let since = ends.chain(rolled_back.map(|id| id + 1)).max().unwrap_or(0);
    let newest = since..u64::MAX;
    let mut ranges = vec![newest];
    let mut number = generation;
    while let Some(one) = generations.iter().find(|one| one.number == number) {
        ranges.push(if one.is_oldest { 0..one.end } else { one.first..one.end });
        number = one.parent;
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generation(number: u64, parent: u64, ids: Range<u64>) -> Generation {
        Generation {
            number,
            parent,
            first: ids.start,
            end: ids.end,
            unix_ms: 0,
            why: String::new(),
            figures: Vec::new(),
            adopted: None,
            is_oldest: false,
            has_state: true,
        }
    }

    #[test]
    fn items_count_along_the_line_of_generations() {
        let check = |generations: &[Generation], now, rolled_back, expected: &[u64]| {
            let present = present(generations, now, rolled_back);
            let ids: Vec<u64> = (1..12).filter(|id| present.iter().any(|range| range.contains(id))).collect();
            assert_eq!(ids, expected);
        };
        check(&[], 0, None, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
        let two = [generation(1, 0, 1..4), generation(2, 1, 4..7)];
        check(&two, 2, None, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
        // Back to the first one by item 7, and to the model alone.
        check(&two, 1, Some(7), &[1, 2, 3, 8, 9, 10, 11]);
        check(&two, 0, Some(7), &[8, 9, 10, 11]);
        // Another branch from the first one.
        let three = [generation(1, 0, 1..4), generation(2, 1, 4..7), generation(3, 1, 8..10)];
        check(&three, 3, Some(7), &[1, 2, 3, 8, 9, 10, 11]);
        // Forward again by item 10.
        check(&three, 2, Some(10), &[1, 2, 3, 4, 5, 6, 11]);
    }
}
