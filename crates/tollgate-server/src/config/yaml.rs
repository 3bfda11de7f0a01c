//! From YAML text to a [tree](super::tree). The only module that knows the YAML parser.
//!
//! Everything that could take much time or memory has a bound: the depth, the number of values, and
//! the size of aliases. Merge keys (`<<`) are resolved here; a key of the map itself wins.

use super::tree::{Entry, Kind, Node, Spot, shown};
use granit_parser::{ErrorKind, Event, Marker, Parser, ScalarStyle, Span, StrInput, Tag};
use std::collections::{HashMap, HashSet};

/// The deepest nesting of lists and maps.
pub(super) const DEPTH_MAX: usize = 32;
/// The most values in one file, those that aliases repeat included.
pub(super) const NODES_MAX: usize = 1_000_000;
/// The most text that aliases repeat in one file, in bytes.
const REPEATED_MAX: usize = 16 << 20;

/// An error and its place.
pub(super) type Fault = (Spot, String);

/// Reads the one document of a file. Errors that do not hide what follows are collected.
///
/// # Errors
///
/// The first error after which parsing cannot go on.
pub(super) fn read(text: &str, faults: &mut Vec<Fault>) -> Result<Option<Node>, Fault> {
    let mut options = granit_parser::Options::default();
    options.set_emit_comments(false);
    options.flow_nesting_limit = DEPTH_MAX + 1;
    options.block_nesting_limit = DEPTH_MAX + 1;
    let mut builder = Builder::new(faults);
    let parser: Parser<'_, StrInput<'_>> = Parser::new_from_str_with_options(text, options);
    for event in parser {
        let (event, span) = event.map_err(|error| {
            let text = match error.kind() {
                ErrorKind::RecursionLimitExceeded => too_deep(),
                _ => error.info(),
            };
            (spot(error.marker()), text)
        })?;
        if matches!(event, Event::StreamEnd) {
            break;
        }
        builder.event(event, span)?;
    }
    Ok(builder.root)
}

fn spot(mark: &Marker) -> Spot {
    let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Spot { line: small(mark.line()), column: small(mark.col()).saturating_add(1) }
}

/// A list or map that is not at its end yet.
struct Open {
    node: Node,
    anchor: usize,
    /// The key whose value comes next.
    key: Option<Key>,
    /// The maps that `<<` merges in.
    merged: Vec<Node>,
}

struct Key {
    text: Box<str>,
    is_text: bool,
    /// It is `<<`, without quotes.
    is_merge: bool,
    spot: Spot,
}

/// A finished value that aliases can repeat.
struct Anchored {
    node: Node,
    size: Size,
}

#[derive(Clone, Copy, Default)]
struct Size {
    nodes: usize,
    bytes: usize,
    depth: usize,
}

struct Builder<'a> {
    open: Vec<Open>,
    anchors: HashMap<usize, Anchored>,
    root: Option<Node>,
    documents: usize,
    nodes: usize,
    repeated: usize,
    faults: &'a mut Vec<Fault>,
}

impl<'a> Builder<'a> {
    fn new(faults: &'a mut Vec<Fault>) -> Self {
        Self {
            open: Vec::new(),
            anchors: HashMap::new(),
            root: None,
            documents: 0,
            nodes: 0,
            repeated: 0,
            faults,
        }
    }

    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), Fault> {
        let at = spot(&span.tag_start().unwrap_or(span.start));
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    let text = "a file can have only one document; move what follows '---' to a \
                                file of its own";
                    return Err((at, text.to_owned()));
                }
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                let kind = scalar(&text, style, tag.as_deref()).map_err(|text| (at, text))?;
                self.count(1, at)?;
                self.finished(Node { spot: at, kind }, anchor, style == ScalarStyle::Plain)
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.start(Node { spot: at, kind: Kind::List(Vec::new()) }, anchor, tag.as_deref())
            }
            Event::MappingStart(_, anchor, tag) => {
                self.start(Node { spot: at, kind: Kind::Map(Vec::new()) }, anchor, tag.as_deref())
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(id) => self.alias(id, at),
            _ => Ok(()),
        }
    }

    fn count(&mut self, nodes: usize, at: Spot) -> Result<(), Fault> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > NODES_MAX {
            let text = format!("more than {NODES_MAX} values in one file; split it");
            return Err((at, text));
        }
        Ok(())
    }

    fn start(&mut self, node: Node, anchor: usize, tag: Option<&Tag>) -> Result<(), Fault> {
        let at = node.spot;
        self.count(1, at)?;
        if self.open.len() >= DEPTH_MAX {
            return Err((at, too_deep()));
        }
        if let Some(tag) = tag
            && !["seq", "map"].iter().any(|known| tag.is_yaml_core_schema_tag(known))
        {
            return Err((at, unknown_tag(tag)));
        }
        self.open.push(Open { node, anchor, key: None, merged: Vec::new() });
        Ok(())
    }

    fn end(&mut self) -> Result<(), Fault> {
        let Some(Open { mut node, anchor, merged, .. }) = self.open.pop() else { return Ok(()) };
        if let Kind::Map(entries) = &mut node.kind {
            remove_duplicates(entries, self.faults);
            merge(entries, merged, self.faults);
        }
        self.finished(node, anchor, false)
    }

    /// Puts a finished value where it belongs.
    fn finished(&mut self, node: Node, anchor: usize, bare: bool) -> Result<(), Fault> {
        if anchor != 0 {
            let size = measure(&node);
            // A copy is kept for the aliases, so it counts as one of them.
            self.repeat(size, node.spot)?;
            self.anchors.insert(anchor, Anchored { node: node.clone(), size });
        }
        let Some(parent) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match &mut parent.node.kind {
            Kind::List(items) => items.push(node),
            Kind::Map(entries) => match parent.key.take() {
                None => parent.key = Some(key_of(node, bare)?),
                Some(key) if key.is_merge => parent.merged.push(node),
                Some(Key { text: key, is_text: has_text_key, spot, .. }) => {
                    entries.push(Entry { key, has_text_key, spot, value: node });
                }
            },
            _ => {}
        }
        Ok(())
    }

    fn repeat(&mut self, size: Size, at: Spot) -> Result<(), Fault> {
        self.count(size.nodes, at)?;
        self.repeated = self.repeated.saturating_add(size.bytes);
        if self.repeated > REPEATED_MAX {
            let text = format!(
                "aliases expand to more than {} MiB of text; use fewer",
                REPEATED_MAX >> 20
            );
            return Err((at, text));
        }
        if self.open.len() + size.depth > DEPTH_MAX {
            return Err((at, too_deep()));
        }
        Ok(())
    }

    fn alias(&mut self, id: usize, at: Spot) -> Result<(), Fault> {
        let Some(anchored) = self.anchors.get(&id) else {
            return Err((at, "an alias refers to itself; remove it".to_owned()));
        };
        let size = anchored.size;
        self.repeat(size, at)?;
        let Some(anchored) = self.anchors.get(&id) else { return Ok(()) };
        // It keeps the places of the original, because a mistake is corrected there.
        let node = anchored.node.clone();
        self.finished(node, 0, false)
    }
}

fn too_deep() -> String {
    format!("lists and maps are nested deeper than {DEPTH_MAX} levels; use fewer")
}

fn unknown_tag(tag: &Tag) -> String {
    format!("the tag '{}' has no meaning here; remove it", shown(&tag.original()))
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Kind, String> {
    let is = |name: &str| tag.is_some_and(|tag| tag.is_yaml_core_schema_tag(name));
    if is("str") || (tag.is_none() && style != ScalarStyle::Plain) {
        return Ok(Kind::String(text.into()));
    }
    match tag {
        Some(tag) if !["int", "float", "bool", "null"].iter().any(|name| is(name)) => {
            Err(unknown_tag(tag))
        }
        _ => Ok(Kind::of_plain(text)),
    }
}

fn key_of(node: Node, bare: bool) -> Result<Key, Fault> {
    let spot = node.spot;
    let (text, is_text): (Box<str>, bool) = match node.kind {
        Kind::String(text) => (text, true),
        Kind::Bool(_, text) | Kind::Number(text) => (text, false),
        Kind::Null => ("null".into(), false),
        Kind::List(_) | Kind::Map(_) => {
            return Err((spot, format!("{} cannot be a key; use a string", node.described())));
        }
    };
    let is_merge = bare && &*text == "<<";
    Ok(Key { text, is_text, is_merge, spot })
}

fn remove_duplicates(entries: &mut Vec<Entry>, faults: &mut Vec<Fault>) {
    let mut seen: HashMap<Box<str>, u32> = HashMap::with_capacity(entries.len());
    entries.retain(|entry| match seen.get(&entry.key) {
        Some(line) => {
            let text = format!(
                "the key '{}' is already defined in line {line}; remove one",
                shown(&entry.key)
            );
            faults.push((entry.spot, text));
            false
        }
        None => {
            seen.insert(entry.key.clone(), entry.spot.line);
            true
        }
    });
}

fn merge(entries: &mut Vec<Entry>, merged: Vec<Node>, faults: &mut Vec<Fault>) {
    if merged.is_empty() {
        return;
    }
    let mut known: HashSet<Box<str>> = entries.iter().map(|entry| entry.key.clone()).collect();
    let mut add = |node: Node| match node.kind {
        Kind::Map(more) => {
            entries.extend(more.into_iter().filter(|entry| known.insert(entry.key.clone())));
        }
        _ => faults.push((node.spot, "'<<' must be a map or a list of maps".to_owned())),
    };
    for node in merged {
        match node.kind {
            Kind::List(items) => items.into_iter().for_each(&mut add),
            _ => add(node),
        }
    }
}

fn measure(node: &Node) -> Size {
    let mut size = Size { nodes: 1, bytes: node.text().map_or(0, str::len), depth: 0 };
    let mut add = |inner: Size, key: usize| {
        size.nodes += inner.nodes;
        size.bytes += inner.bytes + key;
        size.depth = size.depth.max(inner.depth + 1);
    };
    match &node.kind {
        Kind::List(items) => items.iter().for_each(|item| add(measure(item), 0)),
        Kind::Map(entries) => {
            entries.iter().for_each(|entry| add(measure(&entry.value), entry.key.len()));
        }
        _ => {}
    }
    size
}
