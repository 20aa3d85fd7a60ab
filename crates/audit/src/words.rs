//! Small helps with words.

/// Name and version of the program, as its files say them.
pub fn tool() -> String {
    format!("afterimage {}", env!("CARGO_PKG_VERSION"))
}

/// So many of a thing, in words that agree.
///
/// ```
/// assert_eq!(afterimage_audit::counted(1, "run"), "1 run");
/// assert_eq!(afterimage_audit::counted(0, "run"), "0 runs");
/// ```
pub fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// The text with its first letter a capital.
///
/// ```
/// assert_eq!(afterimage_audit::capitalised("a gradient"), "A gradient");
/// ```
pub fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}
