//! Results of calls as text.

use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};

/// The result of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct McpOutput {
    /// Its text. Images and other content that is no text are named in square brackets.
    pub text: String,
    /// Whether the tool says that it failed.
    pub is_error: bool,
    /// Bytes of the whole text, of which the end may be cut off.
    pub n_bytes: usize,
}

impl McpOutput {
    /// Makes one of a text, cut to `n_max` bytes.
    pub(crate) fn new(text: &str, is_error: bool, n_max: usize) -> McpOutput {
        let n_bytes = text.len();
        if n_bytes <= n_max {
            return McpOutput { text: text.to_owned(), is_error, n_bytes };
        }
        let end = text.floor_char_boundary(n_max);
        let text = format!("{}\n[the result has {n_bytes} bytes; these are the first {end}]", &text[..end]);
        McpOutput { text, is_error, n_bytes }
    }

    /// Makes one of what a server sent, cut to `n_max` bytes.
    pub(crate) fn of(result: &CallToolResult, n_max: usize) -> McpOutput {
        let parts: Vec<String> = result.content.iter().map(part).collect();
        // The structured form says the same for programs; servers repeat it as text, but need not.
        let text = match (&parts[..], &result.structured_content) {
            ([], Some(value)) => value.to_string(),
            _ => parts.join("\n"),
        };
        McpOutput::new(&text, result.is_error == Some(true), n_max)
    }
}

fn part(content: &ContentBlock) -> String {
    match content {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => left_out("image", &image.mime_type, image.data.len()),
        ContentBlock::Audio(audio) => left_out("audio", &audio.mime_type, audio.data.len()),
        ContentBlock::Resource(embedded) => match &embedded.resource {
            ResourceContents::TextResourceContents { text, .. } => text.clone(),
            ResourceContents::BlobResourceContents { uri, blob, .. } => left_out("resource", uri, blob.len()),
            _ => unknown(),
        },
        ContentBlock::ResourceLink(link) => format!("[resource {}: {}]", link.uri, link.name),
        _ => unknown(),
    }
}

fn unknown() -> String {
    "[content of a kind that is not known]".to_owned()
}

/// Names content that is no text; `n_base64` is the length of its text in base64.
fn left_out(kind: &str, what: &str, n_base64: usize) -> String {
    format!("[{kind} {what}, {} bytes: not shown, only text is read]", n_base64 / 4 * 3)
}

#[cfg(test)]
mod tests {
    use rmcp::model::{ContentBlock, ResourceContents};
    use serde_json::json;

    use super::*;

    #[test]
    fn all_that_a_tool_returns_becomes_text() {
        let blob = ResourceContents::blob("AAAA", "file:///b");
        let content = vec![
            ContentBlock::text("one"),
            ContentBlock::image("AAAAAAAA", "image/png"),
            ContentBlock::resource(ResourceContents::text("two", "file:///a")),
            ContentBlock::resource(blob),
        ];
        let output = McpOutput::of(&CallToolResult::success(content), 1000);
        let lines: Vec<_> = output.text.lines().collect();
        assert_eq!(lines[0], "one");
        assert!(lines[1].starts_with("[image image/png, 6 bytes: not shown"));
        assert_eq!(lines[2], "two");
        assert!(lines[3].starts_with("[resource file:///b, 3 bytes"));
        let mut bare = CallToolResult::structured(json!({ "a": 1 }));
        bare.content.clear();
        assert_eq!(McpOutput::of(&bare, 100).text, "{\"a\":1}");
    }

    #[test]
    fn long_results_are_cut_between_characters() {
        let output = McpOutput::new("aéé", false, 4);
        assert_eq!(output.text, "aé\n[the result has 5 bytes; these are the first 3]");
        assert_eq!(output.n_bytes, 5);
        assert_eq!(McpOutput::new("aéé", false, 5).text, "aéé");
    }
}
