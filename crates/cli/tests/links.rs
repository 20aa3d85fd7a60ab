//! Links of the documents lead somewhere, and every page is in the book.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use common::root;
use pulldown_cmark::{Event, Parser, Tag, TagEnd};

/// Every Markdown file of the documents.
fn documents() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"].iter().map(|name| root().join(name)).collect();
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension() {
                _ if path.is_dir() => folders.push(path),
                Some(extension) if extension == "md" => found.push(path),
                _ => {}
            }
        }
    }
    found
}

/// Addresses that a document links to, and names of its headings as browsers know them.
fn links(path: &Path) -> (Vec<String>, BTreeSet<String>) {
    let text = fs::read_to_string(path).unwrap();
    let (mut addresses, mut headings, mut heading) = (Vec::new(), BTreeSet::new(), None);
    for event in Parser::new(&text) {
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                addresses.push(dest_url.to_string())
            }
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => {
                let words = heading.take().unwrap_or_default().to_lowercase().replace(' ', "-");
                headings.insert(words.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect());
            }
            Event::Text(words) | Event::Code(words) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&words);
                }
            }
            _ => {}
        }
    }
    (addresses, headings)
}

#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    for document in documents() {
        let (addresses, own) = links(&document);
        for address in addresses.iter().filter(|address| !address.is_empty() && !address.contains("://")) {
            let (file, anchor) = address.split_once('#').unwrap_or((address, ""));
            let target = if file.is_empty() { document.clone() } else { document.parent().unwrap().join(file) };
            let there = match target.extension() {
                Some(extension) if extension == "md" && !anchor.is_empty() && target.is_file() => {
                    let headings = if file.is_empty() { own.clone() } else { links(&target).1 };
                    headings.contains(anchor)
                }
                _ => target.exists(),
            };
            if !there {
                broken.push(format!("{}: {address}", document.strip_prefix(root()).unwrap().display()));
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
}

#[test]
fn every_page_is_in_the_book() {
    let docs = root().join("docs");
    let (listed, _) = links(&docs.join("SUMMARY.md"));
    let listed: BTreeSet<PathBuf> = listed.iter().filter(|page| !page.is_empty()).map(|page| docs.join(page)).collect();
    let pages = documents().into_iter().filter(|page| page.starts_with(&docs) && !page.ends_with("SUMMARY.md"));
    let missing: Vec<PathBuf> = pages.filter(|page| !listed.contains(page)).collect();
    assert!(missing.is_empty(), "not in docs/SUMMARY.md: {missing:?}");
    // What lies outside docs/ is not part of the book: a page cannot link to it by a path.
    let book = docs.canonicalize().unwrap();
    for page in &listed {
        for address in links(page).0 {
            let target = page.parent().unwrap().join(address.split('#').next().unwrap()).canonicalize();
            assert!(target.is_err() || target.unwrap().starts_with(&book), "{}: {address}", page.display());
        }
    }
}
