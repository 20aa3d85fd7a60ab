//! Several runs judged together: attacks that were all tried on one release.

use afterimage_attacks::Stop;
use serde::{Deserialize, Serialize};

use crate::LabelsRead;
use crate::Result;
use crate::findings::{Findings, SCHEMA, controls_needed, of_layer};
use crate::run_dir::RunDir;
use crate::statistics::{clopper_pearson, holm};
use crate::verdict::{LEVEL, Verdict};

/// One run among others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Its place among the runs as they were given.
    #[serde(skip)]
    pub place: usize,
    /// The attack.
    pub attack: String,
    /// The verdict, its p-value corrected for the other runs.
    pub verdict: Verdict,
    /// The sentence that says it.
    pub sentence: String,
    /// Fisher's p of the run alone.
    pub p_value: f64,
    /// The same after Holm's correction.
    pub p_corrected: f64,
    /// Members rebuilt.
    pub recovered: usize,
    /// Members.
    pub members: usize,
    /// Controls that came back as well.
    pub control_recovered: usize,
    /// Test controls.
    pub controls: usize,
    /// Members and controls below a mean squared error of 1e-2, wherever the criterion's line is, if that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recognisable: Option<(usize, usize)>,
    /// Of one that reads labels and rebuilds nothing: how many are right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<LabelsRead>,
    /// Candidates that provably reproduce what was shared.
    #[serde(default)]
    pub proven: usize,
    /// Whether a clock ended it before it could be judged as it was planned.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub out_of_time: bool,
    /// Whether there was anything to score: an attack may have been stopped before it had a candidate.
    #[serde(default = "yes")]
    pub scored: bool,
    /// Hash of the observed parameters.
    pub model_sha256: String,
    /// Wall-clock time of the attack.
    pub seconds: f64,
}

fn yes() -> bool {
    true
}

/// What several runs say together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of the schema.
    pub schema: u32,
    /// Name and version of the program.
    pub tool: String,
    /// The worst verdict.
    pub verdict: Verdict,
    /// The sentence of the run it comes from.
    pub sentence: String,
    /// The runs, worst verdict first, in the given order otherwise.
    pub runs: Vec<Part>,
    /// Of an audit: attacks that were not run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_run: Vec<NotRun>,
    /// Of an audit: attacks that made fewer steps than usual.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shortened: Vec<Shortened>,
    /// Of an audit: tries of attacks that came back with less than another one of the same attack, which counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tried: Vec<Tried>,
    /// Of an audit: what was found in the model as it was imported, one fact a line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub import: Vec<String>,
}

/// What is known of an audit beside its runs.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// Attacks that were not run.
    pub not_run: Vec<NotRun>,
    /// Attacks that made fewer steps than usual.
    pub shortened: Vec<Shortened>,
    /// What was found in the model as it was imported.
    pub import: Vec<String>,
}

impl About {
    /// What an audit that was judged knew.
    pub fn of_audit(dir: &RunDir) -> Result<Self> {
        if !dir.has("summary.json") {
            return Ok(Self::default());
        }
        let Summary { not_run, shortened, import, .. } = dir.read_json("summary.json")?;
        Ok(Self { not_run, shortened, import })
    }
}

impl std::fmt::Display for Shortened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} made {} of its usual {} {} in its share of the budget, of which half is kept for a twin",
            self.attack, self.made, self.usual, self.unit
        )
    }
}

/// An attack whose steps were cut to what a budget allows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shortened {
    /// The attack.
    pub attack: String,
    /// Steps or searches that it made.
    pub made: usize,
    /// Those that it makes if time allows.
    pub usual: usize,
    /// Which of the two.
    pub unit: String,
}

/// A try of an attack that was made more than once: not the one that counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    /// The attack.
    pub attack: String,
    /// Which of its tries this was, counted from 0.
    pub number: u32,
    /// Steps or searches that it made.
    pub made: usize,
    /// Which of the two.
    pub unit: String,
    /// What came of it.
    pub verdict: Verdict,
    /// Members rebuilt.
    pub recovered: usize,
    /// Members.
    pub members: usize,
    /// Test controls that came back as well.
    pub control_recovered: usize,
    /// Test controls.
    pub controls: usize,
    /// Fisher's p of the try alone; the correction for several runs counts it as one.
    pub p_value: f64,
}

impl std::fmt::Display for Tried {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { attack, made, unit, verdict, recovered, members, control_recovered, controls, .. } = self;
        write!(
            f,
            "another try of {attack}, of {made} {unit}, gave {}: {recovered} of {members} past the line, controls {control_recovered} of \
             {controls}. It came back with less",
            verdict.headline()
        )
    }
}

/// The tries of an attack, beside the findings of the one that stands.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Tries {
    /// Which of them stands, counted from 0.
    pub(crate) number: u32,
    /// The others.
    pub(crate) others: Vec<Tried>,
}

impl Tries {
    /// Where they are kept in the folder of a run.
    pub(crate) const FILE: &str = "tries.json";

    pub(crate) fn read(run: &RunDir) -> Result<Self> {
        if run.has(Self::FILE) { run.read_json(Self::FILE) } else { Ok(Self::default()) }
    }

    /// The number of one more.
    pub(crate) fn next(&self) -> u32 {
        self.others.iter().map(|other| other.number).fold(self.number, u32::max).saturating_add(1)
    }

    /// Whoever tries again may succeed by luck again: each try weighs half of the one before, so that all of them together are
    /// wrong by chance at most twice as often as the first alone, and a later one takes nothing from what an earlier has found.
    pub(crate) fn weighed(p_value: f64, number: u32) -> f64 {
        (p_value * f64::from(number).exp2()).min(1.0)
    }
}

/// An attack that was not run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NotRun {
    /// The attack.
    pub attack: String,
    /// Why not.
    pub reason: String,
    /// Whether it fits and came to no end: what it would have found nobody can tell.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unfinished: bool,
    /// Whether that is because time was over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub out_of_time: bool,
}

impl NotRun {
    /// One that cannot be run.
    pub fn unfit(attack: &str, reason: impl Into<String>) -> Self {
        Self { attack: attack.into(), reason: reason.into(), unfinished: false, out_of_time: false }
    }

    /// One that fits and came to no end, by the clock or otherwise.
    pub fn unfinished(attack: &str, reason: impl Into<String>, out_of_time: bool) -> Self {
        Self { unfinished: true, out_of_time, ..Self::unfit(attack, reason) }
    }
}

impl Summary {
    /// Judges runs together: p-values are corrected by Holm's method, and the
    /// overall verdict is the worst. Without runs, nothing was tested.
    pub fn of(runs: &[Findings]) -> Self {
        Self::of_tries(&runs.iter().map(|findings| (findings.clone(), Tries::default())).collect::<Vec<_>>())
    }

    /// The same where some were tried more than once.
    pub(crate) fn of_tries(runs: &[(Findings, Tries)]) -> Self {
        let raw: Vec<f64> =
            runs.iter().map(|(findings, tries)| Tries::weighed(findings.p_value, tries.number)).collect();
        let mut parts: Vec<Part> = runs
            .iter()
            .zip(holm(&raw))
            .enumerate()
            .map(|(place, ((findings, _), p_corrected))| {
                let evidence = findings.evidence(Some(p_corrected));
                let decision = evidence.decide();
                // Only what was found can be lost by correction; the rest stands as it was.
                let found = matches!(findings.verdict, Verdict::Reconstructed | Verdict::Traces);
                let lost = found && decision.verdict != findings.verdict;
                Part {
                    place,
                    attack: findings.attack.clone(),
                    verdict: if lost { decision.verdict } else { findings.verdict },
                    sentence: if lost {
                        of_layer(findings.layer.as_deref(), decision.sentence(&evidence))
                    } else {
                        findings.sentence.clone()
                    },
                    p_value: findings.p_value,
                    p_corrected,
                    recovered: findings.recovered,
                    members: findings.members,
                    control_recovered: findings.control_recovered,
                    controls: findings.controls,
                    recognisable: findings.recognisable,
                    labels: findings.labels.filter(|_| findings.labels_alone()),
                    proven: findings.proven,
                    out_of_time: findings.out_of_time,
                    scored: findings.stop != Stop::Interrupted || findings.candidates > 0,
                    model_sha256: findings.model_sha256.clone(),
                    seconds: findings.seconds,
                }
            })
            .collect();
        // Of those that rebuilt somebody, what is sure to be the largest share comes first; labels alone come last.
        let share = |part: &Part| match part.verdict {
            Verdict::Reconstructed => part.lower_bound(),
            _ if runs[part.place].0.labels_alone() => -1.0,
            _ => 0.0,
        };
        parts.sort_by(|a, b| a.verdict.cmp(&b.verdict).then(share(b).total_cmp(&share(a))));
        let (verdict, sentence) = parts.first().map_or_else(
            || (Verdict::NotApplicable, "No attack here fits this model; nothing was tested.".to_owned()),
            |worst| (worst.verdict, format!("{}: {}", worst.attack, worst.sentence)),
        );
        let About { not_run, shortened, import } = About::default();
        let tool = crate::tool();
        let tried = runs.iter().flat_map(|(_, tries)| tries.others.clone()).collect();
        Self { schema: SCHEMA, tool, verdict, sentence, runs: parts, not_run, shortened, tried, import }
    }

    /// Nothing could be run, for a reason that says what to do.
    pub fn inconclusive(reason: &str) -> Self {
        let sentence = format!("This run cannot tell. Reason: {reason}");
        Self { verdict: Verdict::Inconclusive, sentence, ..Self::of(&[]) }
    }

    /// The same beside attacks that were not run. One that fits and came to no end might have found something: whoever
    /// found nothing cannot speak for it.
    pub fn beside(self, not_run: Vec<NotRun>) -> Self {
        let open = not_run.iter().find(|other| other.unfinished && self.verdict > Verdict::Inconclusive);
        let judged = open.map(|NotRun { attack, reason, .. }| Self::inconclusive(&format!("{attack}: {reason}")));
        let (verdict, sentence) = match judged {
            Some(judged) => (judged.verdict, judged.sentence),
            None => (self.verdict, self.sentence),
        };
        Self { verdict, sentence, not_run, ..self }
    }

    /// Whether more time could tell more: something that named nobody came to no end, or was cut short. Whoever has too few
    /// controls cannot be told more by it.
    pub fn wants_time(&self) -> bool {
        let too_few = self.runs.iter().any(|part| part.members > 0 && part.controls < controls_needed(part.members));
        let open = !self.shortened.is_empty()
            || self.not_run.iter().any(|other| other.out_of_time)
            || self.runs.iter().any(|part| part.out_of_time);
        match self.verdict {
            Verdict::Traces => open,
            Verdict::Inconclusive => open && !too_few,
            _ => false,
        }
    }

    /// The largest lower end of the 95 % intervals for the share of members that can be rebuilt, of runs that rebuilt somebody. Of records that are
    /// proven, and that nobody can count the members of, all.
    pub fn lower_bound(&self) -> f64 {
        if self.verdict == Verdict::Reconstructed && self.runs.iter().all(|part| part.members == 0) {
            return 1.0;
        }
        let rebuilt = self.runs.iter().filter(|part| part.verdict == Verdict::Reconstructed);
        rebuilt.map(Part::lower_bound).fold(0.0, f64::max)
    }
}

impl Part {
    /// The lower end of the 95 % interval for the share of members that can be rebuilt.
    fn lower_bound(&self) -> f64 {
        clopper_pearson(self.recovered, self.members, LEVEL).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_found_does_not_speak_for_what_came_to_no_end() {
        let other = |unfinished| NotRun { unfinished, ..NotRun::unfit("kkt", "it failed") };
        let of = |verdict, unfinished| Summary { verdict, ..Summary::of(&[]) }.beside(vec![other(unfinished)]).verdict;
        assert_eq!(of(Verdict::NotFound, true), Verdict::Inconclusive);
        assert_eq!(of(Verdict::NotApplicable, true), Verdict::Inconclusive);
        assert_eq!(of(Verdict::NotFound, false), Verdict::NotFound);
    }

    #[test]
    fn more_time_is_asked_for_where_it_may_help() {
        let open = |verdict, out_of_time| {
            let open = NotRun::unfinished("kkt", "whatever it says", out_of_time);
            Summary { verdict, not_run: vec![open], ..Summary::of(&[]) }
        };
        assert!(open(Verdict::Inconclusive, true).wants_time() && open(Verdict::Traces, true).wants_time());
        assert!(!open(Verdict::Inconclusive, false).wants_time(), "what failed fails again");
        assert!(!open(Verdict::Reconstructed, true).wants_time() && !open(Verdict::NotFound, true).wants_time());
        let mut few = open(Verdict::Inconclusive, true);
        few.runs.push(part(20, 30));
        assert!(!few.wants_time(), "30 controls stay too few");
        few.runs[0].controls = 100;
        assert!(few.wants_time());
    }

    #[test]
    fn what_passes_a_line_by_chance_is_no_share_that_was_rebuilt() {
        let chance = Part { recovered: 4, verdict: Verdict::NotFound, ..part(4, 200) };
        let mut summary = Summary { verdict: Verdict::NotFound, runs: vec![chance], ..Summary::of(&[]) };
        assert_eq!(summary.lower_bound(), 0.0);
        summary.runs.push(Part { recovered: 4, verdict: Verdict::Reconstructed, ..part(4, 200) });
        assert!((summary.lower_bound() - 0.3976).abs() < 1e-4, "{}", summary.lower_bound());
    }

    fn part(members: usize, controls: usize) -> Part {
        Part {
            place: 0,
            attack: "kkt".into(),
            verdict: Verdict::Inconclusive,
            sentence: String::new(),
            p_value: 1.0,
            p_corrected: 1.0,
            recovered: 0,
            members,
            control_recovered: 0,
            controls,
            recognisable: None,
            labels: None,
            proven: 0,
            out_of_time: false,
            scored: true,
            model_sha256: String::new(),
            seconds: 1.0,
        }
    }

    #[test]
    fn what_was_found_stays_found_beside_what_came_to_no_end() {
        let other = |unfinished| NotRun { unfinished, ..NotRun::unfit("kkt", "it failed") };
        let of = |verdict, unfinished| Summary { verdict, ..Summary::of(&[]) }.beside(vec![other(unfinished)]).verdict;
        assert_eq!(of(Verdict::Reconstructed, true), Verdict::Reconstructed);
    }
}
