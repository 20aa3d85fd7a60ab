//! Mistakes: each is explained, and none leaves anything behind.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::process::Command;

use common::{afterimage, plan};

const LAYERS: &str = r#"network={ kind = "layers", input = [3, 16, 16], layers = [{ kind = "flatten" }, { kind = "linear", outputs = 10 }] }"#;
const CRITERION: &str = r#"score.criterion={ metric = "ssim", above = 0.5 }"#;

#[test]
fn mistakes_are_explained_and_leave_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan();
    let before = || fs::read_dir(folder.path()).unwrap().count();
    fs::write(folder.path().join("cut.bin"), [0; 100]).unwrap();
    fs::write(folder.path().join("words.safetensors"), b"not tensors").unwrap();
    fs::create_dir(folder.path().join("full")).unwrap();
    fs::write(folder.path().join("full/file"), b"x").unwrap();
    let (run, _) = common::run(folder.path(), "run", &[]);
    let gradient = run.join("observation.safetensors").display().to_string();
    let count = before();
    for (arguments, parts) in [
        (vec!["run", &plan, "--set", "data.membres=2", "--out", "x"], vec!["data.membres", "did you mean `members`?"]),
        (vec!["run", &plan, "--set", "attack.kind=exakt", "--out", "x"], vec!["exakt"]),
        (vec!["run", &plan, "--set", "data.members=\"two\"", "--out", "x"], vec!["string \"two\""]),
        (vec!["run", "absent.toml"], vec!["absent.toml", "cannot be read"]),
        (vec!["run", &plan, "--device", "tpu", "--out", "x"], vec!["device tpu"]),
        (vec!["run", &plan, "--out", "full"], vec!["full", "not empty", "--resume"]),
        (vec!["run", "--resume", "absent"], vec!["absent", "does not exist", "the directory"]),
        (vec!["attack", "analytic", "--observation", "words.safetensors"], vec!["words.safetensors", "not a readable"]),
        (
            vec!["attack", "model-inversion", "--observation", &gradient, "--out", "x"],
            vec!["`model-inversion` needs final weights, and the observation is a gradient"],
        ),
        (
            vec!["run", &plan, "--set", "attack={ kind = \"model-inversion\" }", "--out", "x"],
            vec!["attack.kind", "needs final weights, and this victim shares a gradient", "afterimage list"],
        ),
        (
            vec!["run", &plan, "--set", "network.outputs=2", "--set", "data.members=64", "--out", "x"],
            vec!["class", "out of range", "2 classes"],
        ),
        (
            vec!["run", &plan, "--set", LAYERS, "--out", "x"],
            vec!["network.input", "[3, 16, 16]", "[3, 32, 32]", "resize"],
        ),
        (
            vec!["run", &plan, "--set", CRITERION, "--set", "data.resize=[8, 8]", "--out", "x"],
            vec!["ssim has no meaning"],
        ),
        (vec!["run", &plan, "--set", "data.source=absent.bin", "--out", "x"], vec!["absent.bin", "cannot be opened"]),
        (vec!["run", &plan, "--set", "data.source=cut.bin", "--out", "x"], vec!["cut.bin", "no whole number"]),
        (vec!["run", &plan, "--set", "data.source=builtin:dogs", "--out", "x"], vec!["no such built-in"]),
        (vec!["run", &plan, "--out", "full/file/x"], vec!["full/file/x", "cannot be made"]),
        (vec!["score", "full", "--truth", "a.npz"], vec!["full", "not the directory of a run"]),
        (vec!["report", "full"], vec!["full", "not the directory of a run"]),
    ] {
        let output = afterimage(&arguments, folder.path());
        let talk = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {talk}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        for part in parts {
            assert!(talk.contains(part), "`{part}` is not in: {talk}");
        }
        assert_eq!(before(), count, "{arguments:?} left something behind");
    }
}

/// Where nothing more can be written, the file is named, what is there is whole,
/// and the run goes on once there is room.
#[cfg(unix)]
#[test]
fn a_full_disk_is_named_and_leaves_no_half_written_file() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan();
    // A limit on the size of files stops a write as a full disk does, in the middle of a file.
    let limited = |kilobytes: u32, arguments: &str| {
        let command = format!("trap '' XFSZ; ulimit -f {kilobytes}; exec \"$0\" {arguments}");
        let program = env!("CARGO_BIN_EXE_afterimage");
        Command::new("bash").args(["-c", &command, program]).current_dir(folder.path()).output().unwrap()
    };
    let output = limited(64, &format!("run '{plan}' --out run"));
    let talk = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && talk.contains("truth.safetensors: cannot be written"), "{talk}");
    let left: Vec<String> = fs::read_dir(folder.path().join("run"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(left.iter().all(|name| !name.ends_with(".part") && !name.ends_with(".safetensors")), "{left:?}");
    let resumed = afterimage(&["run", "--resume", "run"], folder.path());
    assert!(resumed.status.success(), "{}", String::from_utf8_lossy(&resumed.stderr));
}
