//! Tells the program which commit it is built from, where that is known.

use std::process::Command;

fn main() {
    // Without a repository there is nothing to watch, and nothing to say.
    println!("cargo::rerun-if-changed=../../.git/HEAD");
    println!("cargo::rerun-if-changed=../../.git/refs/heads");
    let commit = Command::new("git").args(["rev-parse", "HEAD"]).output().ok().filter(|output| output.status.success());
    if let Some(commit) = commit.and_then(|output| String::from_utf8(output.stdout).ok()) {
        println!("cargo::rustc-env=AFTERIMAGE_COMMIT={}", commit.trim());
    }
}
