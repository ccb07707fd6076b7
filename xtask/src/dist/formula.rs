//! The Homebrew formula: an archive for each system that there is one of.

use std::fmt::Write as _;

/// An archive of a release.
pub(super) struct Archive {
    /// System and processor: `linux-x64`.
    pub(super) name: String,
    pub(super) sha256: String,
}

/// Systems as Homebrew names them, each with the archive for it.
const SYSTEMS: [(&str, &str, &str); 4] = [
    ("on_macos", "on_arm", "macos-arm64"),
    ("on_macos", "on_intel", "macos-x64"),
    ("on_linux", "on_arm", "linux-arm64"),
    ("on_linux", "on_intel", "linux-x64-static"),
];

/// Returns the formula of a version whose archives lie under `url`.
pub(super) fn formula(version: &str, url: &str, archives: &[Archive]) -> String {
    let mut text = format!(
        "class Ruvllm < Formula\n  desc \"Serving runtime for language models in GGUF files\"\n  homepage \"{url}\"\n  \
         version \"{version}\"\n  license any_of: [\"MIT\", \"Apache-2.0\"]\n"
    );
    for (system, processor, name) in SYSTEMS {
        let Some(archive) = archives.iter().find(|archive| archive.name == name) else { continue };
        let _ = write!(
            text,
            "\n  {system} do\n    {processor} do\n      url \"{url}/releases/download/v{version}/ruvllm-{version}-{name}.tar.gz\"\n      \
             sha256 \"{}\"\n    end\n  end\n",
            archive.sha256
        );
    }
    text.push_str(
        "\n  def install\n    bin.install \"bin/ruvllm\"\n    man1.install Dir[\"share/man/man1/*\"]\n    \
         bash_completion.install \"share/bash-completion/completions/ruvllm\"\n    \
         zsh_completion.install \"share/zsh/site-functions/_ruvllm\"\n    \
         fish_completion.install \"share/fish/vendor_completions.d/ruvllm.fish\"\n  end\n\n  service do\n    \
         run [opt_bin/\"ruvllm\", \"serve\"]\n    keep_alive true\n  end\n\n  test do\n    \
         assert_match version.to_s, shell_output(\"#{bin}/ruvllm --version\")\n  end\nend\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_formula_names_the_archives_there_are() {
        let archives = [Archive { name: "linux-x64-static".to_owned(), sha256: "ab".repeat(32) }];
        let text = formula("1.2.3", "https://example.org/ruvllm", &archives);
        assert!(text.contains("releases/download/v1.2.3/ruvllm-1.2.3-linux-x64-static.tar.gz"), "{text}");
        assert!(!text.contains("on_macos") && text.contains(&"ab".repeat(32)));
        let ends = text.lines().filter(|line| line.trim() == "end").count();
        let opens = text
            .lines()
            .filter(|line| line.trim_end().ends_with(" do") || line.contains("def ") || line.starts_with("class"))
            .count();
        assert_eq!(ends, opens);
    }
}
