//! An attack that is made once more with the time that is left: which of the two stands, and what is kept of the other.

use afterimage_attacks::AnyAttack;

use super::plans::steps;
use crate::Result;
use crate::combined::Tried;
use crate::findings::Findings;
use crate::pipeline;
use crate::plan::Plan;
use crate::run_dir::RunDir;
use crate::verdict::Verdict;

/// In the folder of a run, those that it took the place of or that did not take its place.
const TRIES: &str = "tries.json";

/// Where a run is kept while it is made once more.
fn earlier(name: &str) -> String {
    format!("{name}.earlier")
}

/// Makes room for a run to be made once more. What the first has found stays until there is something to compare it with.
pub(super) fn set_aside(out: &RunDir, name: &str) -> Result<()> {
    out.rename_folder(name, &earlier(name))
}

/// Ends what was made once more. An attacker may try as often as he likes: of the two, the run stands that came back with
/// more, of equals the longer one, unless the clock ended it. True if that is the earlier.
pub(super) fn settle(out: &RunDir, name: &str) -> Result<bool> {
    let kept = earlier(name);
    if !out.file(&kept).is_dir() {
        return Ok(false);
    }
    let (first, second) = (out.inside(&kept)?, out.inside(name)?);
    let mut tries = tries(&first)?;
    let restored = !second.has(pipeline::FINDINGS) || {
        let (before, after): (Findings, Findings) =
            (first.read_json(pipeline::FINDINGS)?, second.read_json(pipeline::FINDINGS)?);
        let restored = found(&before) > found(&after) || (found(&before) == found(&after) && after.out_of_time);
        tries.push(match restored {
            true => tried(&second, &after)?,
            false => tried(&first, &before)?,
        });
        restored
    };
    if restored {
        out.remove_folder(name)?;
        first.write_json(TRIES, &tries)?;
        out.rename_folder(&kept, name)?;
    } else {
        second.write_json(TRIES, &tries)?;
        out.remove_folder(&kept)?;
    }
    Ok(restored)
}

/// How much came back: records that were rebuilt, traces, or nothing.
fn found(findings: &Findings) -> (usize, usize) {
    match findings.verdict {
        Verdict::Reconstructed => (2, findings.recovered),
        Verdict::Traces => (1, findings.recovered),
        _ => (0, 0),
    }
}

fn tried(run: &RunDir, findings: &Findings) -> Result<Tried> {
    let planned = effort(&Plan::read(&run.file("plan.toml"), &[])?.attack);
    // What the clock ended has not made what was planned.
    let (made, unit) = planned.map_or((findings.iterations, "steps"), |(planned, unit)| {
        (if findings.out_of_time { findings.iterations } else { planned }, unit)
    });
    Ok(Tried {
        attack: findings.attack.clone(),
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

/// The other tries of a run.
pub(super) fn tries(run: &RunDir) -> Result<Vec<Tried>> {
    if run.has(TRIES) { run.read_json(TRIES) } else { Ok(Vec::new()) }
}

/// What an attack was last given to do, in this run or in another try of it; none of one whose effort follows no budget.
pub(super) fn most_made(run: &RunDir) -> Result<Option<usize>> {
    let planned = effort(&Plan::read(&run.file("plan.toml"), &[])?.attack);
    let other = tries(run)?.iter().map(|tried| tried.made).max();
    Ok(planned.map(|(planned, _)| planned.max(other.unwrap_or(0))))
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
    use crate::hooks::Silent;

    const PLAN: &str = r#"
        seed = 1
        data = { source = "builtin:digits-8x8", members = 1, controls = 200 }
        network = { kind = "mlp", hidden = [8], outputs = 10, init = "pytorch" }
        victim = { kind = "federated", loss = "cross-entropy" }
        attack = { kind = "gradinversion", iterations = 2, starts = 1 }
        score = { metrics = ["mse"], criterion = { metric = "mse", below = 1e-2 } }
    "#;

    /// A run of so many steps, its findings changed.
    fn made(out: &RunDir, iterations: usize, change: impl FnOnce(&mut Findings)) {
        let dir = out.inside("gradinversion").unwrap();
        let plan = Plan::parse(PLAN, &[format!("attack.iterations={iterations}")]).unwrap();
        dir.write("plan.toml", plan.to_toml().unwrap().as_bytes()).unwrap();
        let mut findings = pipeline::run(&plan, &dir, &mut Silent).unwrap().unwrap();
        change(&mut findings);
        dir.write_json(pipeline::FINDINGS, &findings).unwrap();
    }

    fn traces(recovered: usize) -> impl FnOnce(&mut Findings) {
        move |findings| {
            findings.verdict = Verdict::Traces;
            findings.recovered = recovered;
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
            assert!(!out.file(&earlier("gradinversion")).exists());
            (
                dir.read_json::<Findings>(pipeline::FINDINGS).unwrap().iterations,
                most_made(&dir).unwrap(),
                tries(&dir).unwrap(),
            )
        };
        let again = || set_aside(&out, "gradinversion").unwrap();
        made(&out, 2, nothing(false));
        assert!(!settle(&out, "gradinversion").unwrap(), "nothing was made once more");
        // Of equals the longer one, and no longer what the clock ended.
        again();
        made(&out, 3, nothing(false));
        assert!(!settle(&out, "gradinversion").unwrap());
        assert_eq!(standing().0, 3);
        again();
        made(&out, 4, nothing(true));
        assert!(settle(&out, "gradinversion").unwrap());
        assert_eq!(standing().0, 3);
        // Traces stand, whatever more steps give.
        again();
        made(&out, 5, traces(1));
        assert!(!settle(&out, "gradinversion").unwrap());
        again();
        made(&out, 6, nothing(false));
        assert!(settle(&out, "gradinversion").unwrap());
        let (iterations, most, tries) = standing();
        assert_eq!((iterations, most), (5, Some(6)), "six steps need not be tried again");
        assert_eq!(tries.iter().map(|tried| tried.made).collect::<Vec<_>>(), [2, 4, 3, 6]);
        assert!(tries[3].to_string().starts_with("gradinversion was made twice; 6 steps gave INCONCLUSIVE: 0 of 1"));
        // The second comes to no findings.
        again();
        out.inside("gradinversion").unwrap().write("plan.toml", b"second").unwrap();
        assert!(settle(&out, "gradinversion").unwrap());
        assert_eq!(standing().0, 5);
    }
}
