//! The head of a model card: lines of YAML between `---`. Texts, and lists of texts, are read; what is nested deeper is left out.

/// The most lines of a head.
const N_LINES_MAX: usize = 10_000;

/// The fields of a head.
#[derive(Debug, Default)]
pub(super) struct FrontMatter {
    fields: Vec<(String, Field)>,
}

#[derive(Debug)]
enum Field {
    Text(String),
    List(Vec<String>),
}

/// Reads the head of a card; a card without one has no fields.
pub(super) fn read(text: &str) -> FrontMatter {
    let mut lines = text.lines();
    let mut front = FrontMatter::default();
    if lines.next() != Some("---") {
        return front;
    }
    for line in lines.take_while(|line| *line != "---").take(N_LINES_MAX) {
        let bare = line.trim();
        if bare.is_empty() || bare.starts_with('#') {
            continue;
        }
        if let Some(item) = bare.strip_prefix("- ") {
            front.item(item);
        } else if let Some((key, value)) = line.split_once(':').filter(|_| !line.starts_with([' ', '\t'])) {
            front.field(key.trim(), value.trim());
        }
    }
    front
}

impl FrontMatter {
    fn field(&mut self, key: &str, value: &str) {
        let field = match value.strip_prefix('[').and_then(|value| value.strip_suffix(']')) {
            Some(items) => Field::List(items.split(',').map(unquoted).filter(|item| !item.is_empty()).collect()),
            None if value.is_empty() => Field::List(Vec::new()),
            None => Field::Text(unquoted(value)),
        };
        self.fields.push((key.to_owned(), field));
    }

    fn item(&mut self, item: &str) {
        // An item that is a mapping is no text.
        let is_mapping = item.split_once(": ").is_some_and(|(key, _)| !key.contains([' ', '"', '\'', '/']));
        if let Some((_, Field::List(items))) = self.fields.last_mut().filter(|_| !is_mapping && !item.ends_with(':')) {
            items.push(unquoted(item));
        }
    }

    fn get(&self, key: &str) -> Option<&Field> {
        self.fields.iter().find(|(own, _)| own == key).map(|(_, field)| field)
    }

    /// Returns a text.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Field::Text(text) => Some(text),
            Field::List(_) => None,
        }
    }

    /// Returns texts, also a single one.
    pub(super) fn list(&self, key: &str) -> Option<Vec<&str>> {
        match self.get(key)? {
            Field::Text(text) => Some(vec![text]),
            Field::List(items) if items.is_empty() => None,
            Field::List(items) => Some(items.iter().map(String::as_str).collect()),
        }
    }
}

fn unquoted(text: &str) -> String {
    let text = text.trim();
    let inner = ['"', '\''].iter().find_map(|&quote| text.strip_prefix(quote)?.strip_suffix(quote));
    inner.unwrap_or(text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_lists_are_read() {
        let card = read(
            "---\nlicense: apache-2.0\nlanguage:\n- en\n- \"no\"\ntags: [a, 'b']\nbase_model: Qwen/Qwen2.5-0.5B\n\
             model-index:\n- name: x\n  results:\n  - task:\n      type: y\n---\n# Model\nlicense: mit\n",
        );
        assert_eq!(card.text("license"), Some("apache-2.0"));
        assert_eq!(card.list("language"), Some(vec!["en", "no"]));
        assert_eq!(card.list("tags"), Some(vec!["a", "b"]));
        assert_eq!(card.list("base_model"), Some(vec!["Qwen/Qwen2.5-0.5B"]));
        assert_eq!(card.list("model-index"), None);
        assert!(read("no head").fields.is_empty() && read("").fields.is_empty());
    }
}
