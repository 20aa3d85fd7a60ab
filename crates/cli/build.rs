//! Tells the program which commit it is built from, where that is known.

use std::process::Command;

fn main() {
    // Without a repository there is nothing to watch, and nothing to say.
    println!("cargo::rerun-if-changed=../../.git/HEAD");
    println!("cargo::rerun-if-changed=../../.git/refs/heads");
    let commit = Command::new("git").args(["rev-parse", "HEAD"]).output().ok().filter(|output| output.status.success());
    let mut version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    if let Some(commit) = commit.and_then(|output| String::from_utf8(output.stdout).ok()) {
        let commit = commit.trim();
        println!("cargo::rustc-env=AFTERIMAGE_COMMIT={commit}");
        version.push_str(&format!(" ({})", commit.get(..12).unwrap_or(commit)));
    }
    println!("cargo::rustc-env=AFTERIMAGE_VERSION={version}");
}
