//! An attack that is made once more with the time that is left: which of the two stands, and what is kept of the other.
//!
//! | folder of an audit | holds |
//! | --- | --- |
//! | `NAME` | the try that stands; beside `NAME.earlier`, the one that is being made |
//! | `NAME.earlier` | the one that stands until the other is judged |
//! | `NAME.longer` | one that the clock ended before it came back with more: with more time it goes on where it was |
//! | `NAME.discarded` | one that is being removed |
//!
//! Folders are renamed and not changed, so that a kill between any two steps leaves what [`recover`] understands.

use afterimage_attacks::AnyAttack;

use super::plans::steps;
use crate::Result;
use crate::combined::{Tried, Tries};
use crate::findings::Findings;
use crate::pipeline;
use crate::plan::Plan;
use crate::run_dir::{RunDir, TRY_DISCARDED, TRY_EARLIER, TRY_LONGER};
use crate::verdict::Verdict;

/// Whether an attack was made once more and not judged yet, after putting in order what a kill may have left.
pub(super) fn recover(out: &RunDir, name: &str) -> Result<bool> {
    let earlier = format!("{name}{TRY_EARLIER}");
    out.remove_folder(&format!("{name}{TRY_DISCARDED}"))?;
    if !out.file(&earlier).is_dir() {
        return Ok(false);
    }
    // Before its plan is written, a second try has not begun.
    let begun = out.file(name).join("plan.toml").is_file();
    if !begun {
        out.remove_folder(name)?;
        out.rename_folder(&earlier, name)?;
    }
    Ok(begun)
}

/// Whether there is a try that the clock ended, and that can go on.
pub(super) fn can_go_on(out: &RunDir, name: &str) -> bool {
    out.file(&format!("{name}{TRY_LONGER}")).is_dir()
}

/// Makes room for a run to be made once more, or for the one that the clock ended. What stands stays until there is something
/// to compare it with.
pub(super) fn set_aside(out: &RunDir, name: &str) -> Result<()> {
    out.rename_folder(name, &format!("{name}{TRY_EARLIER}"))?;
    if can_go_on(out, name) {
        out.rename_folder(&format!("{name}{TRY_LONGER}"), name)?;
    }
    Ok(())
}

/// Ends what was made once more. An attacker may try as often as he likes: of the two, the run stands that came back with
/// more, of equals the longer one, if no clock ended it. True if that is the earlier.
pub(super) fn settle(out: &RunDir, name: &str) -> Result<bool> {
    let earlier = format!("{name}{TRY_EARLIER}");
    if !out.file(&earlier).is_dir() {
        return Ok(false);
    }
    let (first, second) = (out.inside(&earlier)?, out.inside(name)?);
    if !second.has(pipeline::FINDINGS) {
        discard(out, name)?;
        out.rename_folder(&earlier, name)?;
        return Ok(true);
    }
    let before: Findings = first.read_json(pipeline::FINDINGS)?;
    let after: Findings = second.read_json(pipeline::FINDINGS)?;
    let mut tries = Tries::read(&first)?;
    let (old, new) = (tries.number, tries.next());
    let (a, b) = (found(&before, old), found(&after, new));
    let restored = a > b || (a == b && (after.out_of_time || planned(&second)? < planned(&first)?));
    if restored && after.out_of_time {
        // It was not judged as it was planned, and is not counted as a try.
        out.rename_folder(name, &format!("{name}{TRY_LONGER}"))?;
        out.rename_folder(&earlier, name)?;
    } else if restored {
        // A kill may have come after it was written down and before the folder was gone.
        let second = tried(&second, &after, new)?;
        let written = |other: &Tried| other.number + 1 == new && Tried { number: new, ..other.clone() } == second;
        if !tries.others.iter().any(written) {
            tries.others.push(second);
        }
        first.write_json(Tries::FILE, &tries)?;
        discard(out, name)?;
        out.rename_folder(&earlier, name)?;
    } else {
        tries.others.push(tried(&first, &before, old)?);
        second.write_json(Tries::FILE, &Tries { number: new, ..tries })?;
        discard(out, &earlier)?;
    }
    Ok(restored)
}

/// Removes a folder in a way that leaves it whole or gone by its name.
fn discard(out: &RunDir, name: &str) -> Result<()> {
    let plain = name.strip_suffix(TRY_EARLIER).unwrap_or(name);
    let discarded = format!("{plain}{TRY_DISCARDED}");
    out.rename_folder(name, &discarded)?;
    out.remove_folder(&discarded)
}

/// How much came back: records that were rebuilt, how sure traces are, or nothing; with what a later try weighs.
fn found(findings: &Findings, number: u32) -> (usize, f64) {
    let p_value = Tries::weighed(findings.p_value, number);
    let found = matches!(findings.verdict, Verdict::Reconstructed | Verdict::Traces);
    match found.then(|| findings.evidence(Some(p_value)).decide().verdict) {
        Some(Verdict::Reconstructed) => (2, findings.recovered as f64),
        Some(Verdict::Traces) => (1, -p_value),
        _ => (0, 0.0),
    }
}

fn tried(run: &RunDir, findings: &Findings, number: u32) -> Result<Tried> {
    let (made, unit) = planned(run)?.unwrap_or((findings.iterations, "steps"));
    Ok(Tried {
        attack: findings.attack.clone(),
        number,
        made,
        unit: unit.into(),
        verdict: findings.verdict,
        recovered: findings.recovered,
        members: findings.members,
        control_recovered: findings.control_recovered,
        controls: findings.controls,
        p_value: findings.p_value,
    })
}

/// What a run was given to do, and its unit; none of an attack whose effort follows no budget.
pub(super) fn planned(run: &RunDir) -> Result<Option<(usize, &'static str)>> {
    Ok(effort(&Plan::read(&run.file("plan.toml"), &[])?.attack))
}

/// The most that an attack was given to do in any of its tries.
pub(super) fn most_made(run: &RunDir) -> Result<Option<usize>> {
    let others = Tries::read(run)?.others.iter().map(|tried| tried.made).max();
    Ok(planned(run)?.map(|(planned, _)| planned.max(others.unwrap_or(0))))
}

/// What of an attack follows the budget: its steps, or its searches.
pub(super) fn effort(attack: &AnyAttack) -> Option<(usize, &'static str)> {
    match attack {
        AnyAttack::Exact(settings) => Some((settings.searches, "searches for each sample")),
        _ => steps(attack).map(|steps| (steps, "steps")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::{SMALL_PLAN, Silent};

    /// A run of so many steps, its findings changed.
    fn made(out: &RunDir, iterations: usize, change: impl FnOnce(&mut Findings)) {
        let dir = out.inside("gradinversion").unwrap();
        let plan = Plan::parse(SMALL_PLAN, &[format!("attack.iterations={iterations}")]).unwrap();
        dir.write("plan.toml", plan.to_toml().unwrap().as_bytes()).unwrap();
        let mut findings = pipeline::run(&plan, &dir, &mut Silent).unwrap().unwrap();
        change(&mut findings);
        dir.write_json(pipeline::FINDINGS, &findings).unwrap();
    }

    fn traces(p_value: f64) -> impl FnOnce(&mut Findings) {
        move |findings| {
            findings.verdict = Verdict::Traces;
            findings.p_value = p_value;
        }
    }

    fn nothing(out_of_time: bool) -> impl FnOnce(&mut Findings) {
        move |findings| {
            findings.verdict = Verdict::Inconclusive;
            findings.out_of_time = out_of_time;
        }
    }

    #[test]
    fn the_try_that_came_back_with_more_stands() {
        let place = tempfile::tempdir().unwrap();
        let out = RunDir::create(place.path().join("audit")).unwrap();
        let standing = || {
            let dir = out.inside("gradinversion").unwrap();
            let iterations = dir.read_json::<Findings>(pipeline::FINDINGS).unwrap().iterations;
            (iterations, most_made(&dir).unwrap(), Tries::read(&dir).unwrap())
        };
        let again = || set_aside(&out, "gradinversion").unwrap();
        let ends = || settle(&out, "gradinversion").unwrap();
        made(&out, 2, nothing(false));
        assert!(!ends(), "nothing was made once more");
        // Of equals the longer one.
        again();
        made(&out, 3, nothing(false));
        assert!(!ends());
        assert_eq!((standing().0, standing().2.number), (3, 1));
        again();
        made(&out, 2, nothing(false));
        assert!(ends());
        // What the clock ended is kept, and goes on.
        again();
        made(&out, 5, nothing(true));
        assert!(ends() && can_go_on(&out, "gradinversion"));
        assert_eq!((standing().0, standing().2.others.len()), (3, 2), "a try that came to no end is none");
        again();
        assert!(!can_go_on(&out, "gradinversion"));
        assert_eq!(standing().0, 5);
        // Traces stand, whatever more steps give, and what is surer stands before them; a later try weighs less.
        made(&out, 5, traces(0.0005));
        assert!(!ends());
        for p_value in [0.0004, 0.02] {
            again();
            made(&out, 8, traces(p_value));
            assert!(ends());
        }
        let (iterations, most, tries) = standing();
        assert_eq!((iterations, most), (5, Some(8)), "eight steps need not be tried again");
        assert_eq!(tries.number, 3);
        let others: Vec<(u32, usize)> = tries.others.iter().map(|tried| (tried.number, tried.made)).collect();
        assert_eq!(others, [(0, 2), (2, 2), (1, 3), (4, 8), (5, 8)]);
        assert!(
            tries.others[0]
                .to_string()
                .starts_with("another try of gradinversion, of 2 steps, gave INCONCLUSIVE: 0 of 1")
        );
        // A later try weighs less in the summary, too.
        let dir = out.inside("gradinversion").unwrap();
        let summary = crate::combined::Summary::of_tries(&crate::reporting::judged(&[dir]).unwrap());
        assert_eq!((summary.runs[0].p_value, summary.runs[0].p_corrected), (0.0005, 0.004));
        assert_eq!(summary.tried.len(), 5);
        // The second comes to no findings.
        again();
        out.inside("gradinversion").unwrap().write("plan.toml", b"second").unwrap();
        assert!(ends());
        assert_eq!(standing().0, 5);
    }

    #[test]
    fn purging_an_attack_purges_its_other_tries() {
        let place = tempfile::tempdir().unwrap();
        let out = RunDir::create(place.path().join("audit")).unwrap();
        for name in ["exact", "exact.earlier", "exact.longer"] {
            out.inside(name).unwrap().write("truth.safetensors", b"records").unwrap();
        }
        crate::reporting::purge(&out.inside("exact").unwrap()).unwrap();
        for name in ["exact", "exact.earlier", "exact.longer"] {
            assert!(!out.file(name).join("truth.safetensors").exists(), "{name}");
        }
        assert!(out.inside("exact.longer").unwrap().is_other_try() && !out.inside("exact").unwrap().is_other_try());
    }

    #[test]
    fn a_kill_between_two_steps_loses_nothing() {
        let place = tempfile::tempdir().unwrap();
        let out = RunDir::create(place.path().join("audit")).unwrap();
        let has = |name: &str, file: &str| out.file(name).join(file).is_file();
        out.inside("exact").unwrap().write("first", b"").unwrap();
        assert!(!recover(&out, "exact").unwrap());
        // Before the second try has a plan, it has not begun.
        set_aside(&out, "exact").unwrap();
        assert!(!recover(&out, "exact").unwrap() && has("exact", "first"));
        set_aside(&out, "exact").unwrap();
        out.inside("exact").unwrap().write("checkpoint", b"").unwrap();
        assert!(!recover(&out, "exact").unwrap() && has("exact", "first") && !has("exact", "checkpoint"));
        // With a plan it is gone on with.
        set_aside(&out, "exact").unwrap();
        out.inside("exact").unwrap().write("plan.toml", b"").unwrap();
        assert!(recover(&out, "exact").unwrap() && has("exact", "plan.toml") && has("exact.earlier", "first"));
        // What is being removed is gone.
        out.rename_folder("exact", "exact.discarded").unwrap();
        assert!(!recover(&out, "exact").unwrap() && has("exact", "first"));
        assert!(!out.file("exact.discarded").exists() && !out.file("exact.earlier").exists());
    }
}
