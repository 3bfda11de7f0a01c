//! The part of Markdown that the pages use: fenced blocks, headings, tables, links and inline code.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A parsed page.
pub(crate) struct Page {
    /// Relative to the root of the repository.
    pub(crate) path: PathBuf,
    pub(crate) blocks: Vec<Block>,
    /// Paragraphs and table rows with the number of their first line; fenced blocks are left out.
    pub(crate) prose: Vec<(usize, String)>,
    /// The link targets within the page.
    pub(crate) anchors: Vec<String>,
}

/// A fenced block.
pub(crate) struct Block {
    pub(crate) line: usize,
    /// The info string after the opening fence, such as `rust,no_run`.
    pub(crate) language: String,
    pub(crate) text: String,
    /// The file that the text before the block names: `` `shop.yaml`, a file: ``.
    #[cfg_attr(not(feature = "test-servers"), allow(dead_code, reason = "commands read it"))]
    pub(crate) file: Option<String>,
}

/// Inline code, and the text between it and the inline code before.
pub(crate) struct Code<'a> {
    pub(crate) before: &'a str,
    pub(crate) text: &'a str,
}

impl Page {
    pub(crate) fn read(root: &Path, path: PathBuf) -> Self {
        let text = fs::read_to_string(root.join(&path)).unwrap();
        let mut page = Self { path, blocks: Vec::new(), prose: Vec::new(), anchors: Vec::new() };
        let mut lines = text.lines().enumerate();
        let mut paragraph = (0, String::new());
        while let Some((index, line)) = lines.next() {
            let trimmed = line.trim_start();
            let is_alone =
                line.is_empty() || ["```", "#", "|"].iter().any(|s| trimmed.starts_with(s));
            if is_alone && !paragraph.1.is_empty() {
                page.prose.push(std::mem::take(&mut paragraph));
            }
            if let Some(language) = trimmed.strip_prefix("```") {
                let indent = line.len() - trimmed.len();
                let body =
                    lines.by_ref().map(|(_, line)| line).take_while(|line| line.trim() != "```");
                let text =
                    body.map(|line| format!("{}\n", line.get(indent..).unwrap_or(""))).collect();
                let before = page.prose.last().map_or("", |(_, text)| text.as_str());
                let file = file_before(before);
                page.blocks.push(Block { line: index + 1, language: language.into(), text, file });
                // The next block has its own text before it, or none.
                page.prose.push((index + 1, String::new()));
            } else if is_alone {
                if !line.is_empty() {
                    page.prose.push((index + 1, line.into()));
                }
                if let Some(heading) = line.strip_prefix('#') {
                    page.add_heading(heading.trim_start_matches('#').trim());
                }
            } else {
                if paragraph.1.is_empty() {
                    paragraph.0 = index + 1;
                }
                paragraph.1 += &format!("{line}\n");
            }
        }
        page.prose.push(paragraph);
        let ids = text.split("<a id=\"").skip(1).filter_map(|rest| rest.split('"').next());
        page.anchors.extend(ids.map(Into::into));
        page
    }

    /// The place of a line, for messages.
    pub(crate) fn at(&self, line: usize) -> String {
        format!("{}:{line}", self.path.display())
    }

    pub(crate) fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// The anchor that GitHub gives to a heading.
    fn add_heading(&mut self, heading: &str) {
        let kept = heading.to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let slug: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let same = self.anchors.iter().filter(|anchor| **anchor == slug).count();
        self.anchors.push(if same == 0 { slug } else { format!("{slug}-{same}") });
    }
}

/// The inline code of some text, in its order.
pub(crate) fn codes(text: &str) -> Vec<Code<'_>> {
    let mut parts = text.split('`');
    let mut codes = Vec::new();
    while let (Some(before), Some(text)) = (parts.next(), parts.next()) {
        codes.push(Code { before, text });
    }
    codes
}

/// The text without its inline code.
pub(crate) fn without_codes(text: &str) -> String {
    text.split('`').step_by(2).collect()
}

/// A paragraph that ends with a colon and names a file is about the block that follows.
fn file_before(paragraph: &str) -> Option<String> {
    let is_file =
        |name: &str| name.ends_with(".yaml") && !name.contains('/') || name == "src/main.rs";
    let found =
        codes(paragraph).iter().find(|code| is_file(code.text)).map(|code| code.text.into());
    found.filter(|_| paragraph.trim_end().ends_with(':'))
}
