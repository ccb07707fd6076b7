//! Lists that come in pages.

use ruvllm_api::error::ApiError;
use ruvllm_api::fields::{Field, Kind, ValidBody, optional};
use serde_json::{Value, json};

use crate::handlers::openai::stored::INCLUDE;

/// Items in a page where a request does not say.
const LIMIT: usize = 20;

/// The query of a list.
pub(crate) const LIST: &[Field] = &[
    optional("limit", Kind::Int(1, 100), "the most items; 20 if it is left out"),
    optional(
        "order",
        Kind::Word(&["asc", "desc"]),
        "asc begins with the first, desc with the last; desc if it is left out",
    ),
    optional("after", Kind::Text, "the id of the item behind which the page begins"),
    INCLUDE,
];

/// A page while it is filled.
pub(crate) struct Page<T> {
    n_max: usize,
    pub is_ascending: bool,
    /// The item that is waited for.
    after: Option<String>,
    /// The items of the page.
    pub items: Vec<T>,
    has_more: bool,
}

impl<T> Page<T> {
    pub(crate) fn of(given: &ValidBody) -> Page<T> {
        Page {
            n_max: given.count("limit").unwrap_or(LIMIT),
            is_ascending: given.text("order") == Some("asc"),
            after: given.text("after").map(str::to_owned),
            items: Vec::new(),
            has_more: false,
        }
    }

    /// Takes the next item of the list if it belongs to the page, and returns whether more may.
    pub(crate) fn take(&mut self, id: &str, item: impl FnOnce() -> T) -> bool {
        if let Some(after) = &self.after {
            if after == id {
                self.after = None;
            }
            return true;
        }
        self.has_more = self.items.len() == self.n_max;
        if !self.has_more {
            self.items.push(item());
        }
        !self.has_more
    }

    /// Returns the items, and whether there are more.
    ///
    /// # Errors
    /// 400: there is no item behind which it could begin.
    pub(crate) fn end(self) -> Result<(Vec<T>, bool), ApiError> {
        match self.after {
            None => Ok((self.items, self.has_more)),
            Some(_) => Err(ApiError::bad("after", "there is no item of the id that 'after' names")),
        }
    }
}

/// Returns a list as OpenAI has it.
pub(crate) fn listed(data: Vec<Value>, has_more: bool) -> Value {
    let id = |item: Option<&Value>| item.map(|item| item["id"].clone()).unwrap_or_default();
    let (first, last) = (id(data.first()), id(data.last()));
    json!({ "object": "list", "data": data, "first_id": first, "last_id": last, "has_more": has_more })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(query: &str) -> Result<(String, bool), ApiError> {
        let mut page = Page::of(&ValidBody::of_query(query, LIST)?);
        for letter in ["a", "b", "c", "d"] {
            if !page.take(letter, || letter) {
                break;
            }
        }
        page.end().map(|(items, has_more)| (items.concat(), has_more))
    }

    #[test]
    fn a_page_begins_behind_an_item_and_tells_whether_more_follow() {
        for (query, items, has_more) in [
            ("", "abcd", false),
            ("limit=4", "abcd", false),
            ("limit=3", "abc", true),
            ("limit=2&after=b", "cd", false),
            ("limit=1&after=b", "c", true),
            ("after=d", "", false),
        ] {
            assert_eq!(page(query), Ok((items.to_owned(), has_more)), "{query}");
        }
        assert_eq!(page("after=e").expect_err("it is none").param.as_deref(), Some("after"));
    }
}
