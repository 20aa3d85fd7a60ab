//! Small helps with words.

/// The text with its first letter a capital.
///
/// ```
/// assert_eq!(afterimage_audit::capitalised("a gradient"), "A gradient");
/// ```
pub fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}
