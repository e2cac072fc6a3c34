//! Parses a source file into its declarations, imports and paths. A tokenizer is enough for `use`, `mod` and paths.

use std::collections::{BTreeMap, BTreeSet};

/// The path of a module from the root of the crate.
pub(super) type Module = Vec<String>;

/// The content of one module: a file, or a module inside a file.
#[derive(Debug, Default)]
pub(super) struct Content {
    /// Imported or re-exported names, each with the path as written.
    pub(super) imports: BTreeMap<String, Vec<String>>,
    /// Modules from which everything is imported or re-exported.
    pub(super) globs: Vec<Vec<String>>,
    /// Defined names.
    pub(super) defines: BTreeSet<String>,
    /// Imported paths and paths in code, with whether they are re-exported.
    pub(super) paths: Vec<(Vec<String>, bool)>,
}

/// The modules of a file: itself, and the modules inside it.
pub(super) struct Source {
    pub(super) modules: BTreeMap<Module, Content>,
    /// Modules that exist only in tests.
    pub(super) of_tests: BTreeSet<Module>,
}

impl Source {
    /// Parses the text of the file of `module`.
    pub(super) fn new(module: &Module, text: &str) -> Self {
        let tokens = tokens(text);
        let mut reading = Reading {
            tokens: &tokens,
            at: 0,
            source: Self { modules: BTreeMap::new(), of_tests: BTreeSet::new() },
        };
        reading.module(module);
        reading.source
    }
}

/// Splits a text into words and signs; `::` is one sign. Skips comments and literals.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let chars: Vec<char> = text.chars().collect();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut at = 0;
    let find = |from: usize, end: &str| {
        let end: Vec<char> = end.chars().collect();
        (from..chars.len()).find(|at| chars[*at..].starts_with(&end)).map_or(chars.len(), |at| at + end.len())
    };
    while at < chars.len() {
        let rest = &chars[at..];
        at = match rest {
            ['/', '/', ..] => find(at, "\n"),
            ['/', '*', ..] => find(at + 2, "*/"),
            ['r', '"', ..] => find(at + 2, "\""),
            ['r', '#', '"', ..] => find(at + 3, "\"#"),
            ['r', '#', '#', '"', ..] => find(at + 4, "\"##"),
            ['"', ..] => {
                let mut end = at + 1;
                while end < chars.len() && chars[end] != '"' {
                    end += if chars[end] == '\\' { 2 } else { 1 };
                }
                end + 1
            }
            ['\'', '\\', ..] => find(at + 3, "'"),
            ['\'', _, '\'', ..] => at + 3,
            [':', ':', ..] => {
                tokens.push("::".to_owned());
                at + 2
            }
            [c, ..] if is_word(*c) => {
                let word: String = rest.iter().take_while(|c| is_word(**c)).collect();
                let end = at + word.chars().count();
                tokens.push(word);
                end
            }
            [c, ..] => {
                if !c.is_whitespace() {
                    tokens.push(c.to_string());
                }
                at + 1
            }
            [] => at + 1,
        };
    }
    tokens
}

struct Reading<'t> {
    tokens: &'t [String],
    at: usize,
    source: Source,
}

impl Reading<'_> {
    fn token(&self, ahead: usize) -> &str {
        self.tokens.get(self.at + ahead).map_or("", String::as_str)
    }

    /// Parses the items of a module up to its closing brace or the end of the file.
    fn module(&mut self, module: &Module) {
        let mut content = Content::default();
        let mut depth = 0_usize;
        let (mut is_test, mut is_public) = (false, false);
        while self.at < self.tokens.len() {
            if self.token(0) == "#" {
                is_test |= self.attribute();
                continue;
            }
            let is_item_of_tests = std::mem::take(&mut is_test);
            let is_declaration = self.token(0) == "mod" && matches!(self.token(2), ";" | "{");
            if is_item_of_tests {
                let declared = (0..6).find(|ahead| self.token(*ahead) == "mod");
                if let Some(declared) = declared {
                    let name = self.token(declared + 1).to_owned();
                    self.source.of_tests.insert([module.clone(), vec![name]].concat());
                }
                self.skip_item();
                continue;
            }
            match self.token(0) {
                "{" => depth += 1,
                "}" if depth == 0 => {
                    self.at += 1;
                    break;
                }
                "}" => depth -= 1,
                "pub" => {
                    self.at += 1;
                    self.skip_scope();
                    is_public = true;
                    continue;
                }
                "mod" if is_declaration => {
                    let name = self.token(1).to_owned();
                    content.defines.insert(name.clone());
                    let is_inline = self.token(2) == "{";
                    self.at += 3;
                    if is_inline {
                        self.module(&[module.clone(), vec![name]].concat());
                    }
                    is_public = false;
                    continue;
                }
                "use" => {
                    self.at += 1;
                    self.uses(&mut Vec::new(), is_public, &mut content);
                }
                "struct" | "enum" | "union" | "trait" | "type" | "fn" | "const" | "static" => {
                    let name = if self.token(1) == "mut" { self.token(2) } else { self.token(1) };
                    content.defines.insert(name.to_owned());
                }
                _ if self.token(1) == "::" && self.is_word() => {
                    let path = self.path();
                    content.paths.push((path, false));
                    is_public = false;
                    continue;
                }
                _ => {}
            }
            is_public = false;
            self.at += 1;
        }
        self.source.modules.insert(module.clone(), content);
    }

    fn is_word(&self) -> bool {
        self.token(0).starts_with(|c: char| c.is_alphabetic() || c == '_')
    }

    /// A path `a::b::c`, up to the first token that is not a word.
    fn path(&mut self) -> Vec<String> {
        let mut path = vec![self.token(0).to_owned()];
        self.at += 1;
        while self.token(0) == "::" && self.token(1).starts_with(|c: char| c.is_alphabetic() || c == '_') {
            path.push(self.token(1).to_owned());
            self.at += 2;
        }
        path
    }

    /// Skips an attribute. Returns whether it is a condition that only tests satisfy; a feature may be an alternative
    /// to `test`.
    fn attribute(&mut self) -> bool {
        while self.token(0) != "[" && self.at < self.tokens.len() {
            self.at += 1;
        }
        let from = self.at;
        self.skip_brackets();
        let inside = &self.tokens[from..self.at];
        let has = |word: &str| inside.iter().any(|token| token == word);
        inside.get(1).is_some_and(|word| word == "cfg") && has("test") && !has("not") && !has("feature")
    }

    /// Skips `(crate)`, `(super)` or `(in path)` after `pub`.
    fn skip_scope(&mut self) {
        if self.token(0) == "(" && matches!(self.token(1), "crate" | "super" | "self" | "in") {
            self.skip_brackets();
        }
    }

    /// Skips a pair of brackets with its content.
    fn skip_brackets(&mut self) {
        let mut depth = 0_usize;
        while self.at < self.tokens.len() {
            match self.token(0) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                break;
            }
        }
    }

    /// Skips an item, up to its semicolon or its closing brace.
    fn skip_item(&mut self) {
        while self.at < self.tokens.len() {
            match self.token(0) {
                ";" => {
                    self.at += 1;
                    break;
                }
                "{" => {
                    self.skip_brackets();
                    break;
                }
                "(" | "[" => self.skip_brackets(),
                "}" => break,
                _ => self.at += 1,
            }
        }
    }

    /// Parses a tree of a `use` declaration, up to the first token after it.
    fn uses(&mut self, before: &mut Vec<String>, is_public: bool, content: &mut Content) {
        let length = before.len();
        loop {
            match self.token(0) {
                "::" => self.at += 1,
                "{" => {
                    self.at += 1;
                    while self.token(0) != "}" && self.at < self.tokens.len() {
                        let from = self.at;
                        self.uses(before, is_public, content);
                        // A comma, or a token that is not part of a tree.
                        if self.token(0) == "," || self.at == from {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    break;
                }
                "*" => {
                    self.at += 1;
                    content.globs.push(before.clone());
                    content.paths.push((before.clone(), is_public));
                    break;
                }
                _ if self.is_word() => {
                    let word = self.token(0).to_owned();
                    self.at += 1;
                    if word != "self" || before.is_empty() {
                        before.push(word);
                    }
                    if self.token(0) != "::" {
                        let mut name = before.last().cloned().unwrap_or_default();
                        if self.token(0) == "as" {
                            name = self.token(1).to_owned();
                            self.at += 2;
                        }
                        content.imports.insert(name, before.clone());
                        content.paths.push((before.clone(), is_public));
                        break;
                    }
                }
                _ => break,
            }
        }
        before.truncate(length);
    }
}
