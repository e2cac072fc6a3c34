//! The type and value of a plain scalar, by the rules of `kubectl` (sigs.k8s.io/yaml, based on YAML 1.1).
//!
//! Quoted text is always text. Dates remain text, because they become text in JSON.

/// A scalar: its text (with quotes and escapes resolved) and its meaning.
#[derive(Debug, Clone, PartialEq)]
pub struct Scalar {
    /// The text.
    pub text: String,
    /// Its meaning.
    pub kind: ScalarKind,
}

/// The meaning of a scalar.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ScalarKind {
    /// Nothing, `~` or `null`.
    Null,
    /// A boolean.
    Bool(bool),
    /// An integer of at most 64 bits.
    Int(i64),
    /// Any other number.
    Float(f64),
    /// Text.
    Text,
}

impl Scalar {
    /// Text that was quoted, or that a tag marks as text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), kind: ScalarKind::Text }
    }

    /// A plain (unquoted) scalar.
    pub fn plain(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { kind: resolve(&text), text }
    }

    /// The scalar as a mapping key: its JSON text.
    pub fn as_key(&self) -> String {
        match self.kind {
            ScalarKind::Bool(b) => b.to_string(),
            ScalarKind::Int(n) => n.to_string(),
            _ => self.text.clone(),
        }
    }

    /// The description for messages.
    pub fn describe(&self) -> String {
        match self.kind {
            ScalarKind::Null => "nothing".to_owned(),
            ScalarKind::Bool(b) if self.text == b.to_string() => format!("the boolean {b}"),
            ScalarKind::Bool(b) => format!("the boolean {b} (written {})", self.text),
            ScalarKind::Int(_) | ScalarKind::Float(_) => format!("the number {}", self.text),
            ScalarKind::Text => format!("the text {:?}", self.text),
        }
    }
}

fn resolve(text: &str) -> ScalarKind {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return ScalarKind::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return ScalarKind::Bool(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return ScalarKind::Bool(false);
        }
        ".nan" | ".NaN" | ".NAN" => return ScalarKind::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return ScalarKind::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => return ScalarKind::Float(f64::NEG_INFINITY),
        _ => {}
    }
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return ScalarKind::Text;
    }
    let plain = text.replace('_', "");
    if let Some(n) = integer(&plain) {
        return ScalarKind::Int(n);
    }
    let numeric = |c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E');
    if plain.chars().all(numeric)
        && let Ok(f) = plain.parse()
    {
        return ScalarKind::Float(f);
    }
    ScalarKind::Text
}

/// An integer with the prefixes of Go's `strconv.ParseInt` with base 0: `0x`, `0o`, `0b`, and `0` for octal.
fn integer(plain: &str) -> Option<i64> {
    let (sign, digits) = match plain.as_bytes().first()? {
        b'-' => ("-", &plain[1..]),
        b'+' => ("", &plain[1..]),
        _ => ("", plain),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = if let Some(hex) = lower.strip_prefix("0x") {
        (16, hex)
    } else if let Some(octal) = lower.strip_prefix("0o") {
        (8, octal)
    } else if let Some(binary) = lower.strip_prefix("0b") {
        (2, binary)
    } else if let Some(octal) = lower.strip_prefix('0').filter(|rest| !rest.is_empty()) {
        (8, octal)
    } else {
        (10, &*lower)
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    i64::from_str_radix(&format!("{sign}{digits}"), radix).ok()
}
