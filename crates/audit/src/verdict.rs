//! What a run allows one to say, and the sentence that says it.
//!
//! A report is a lower bound on leakage: words of reassurance are never used.

use serde::{Deserialize, Serialize};

use crate::LabelsRead;
use crate::score::Named;
use crate::statistics::{clopper_pearson, fisher};

/// Largest p-value that counts as evidence.
const SIGNIFICANT: f64 = 0.01;
/// Level of intervals.
pub const LEVEL: f64 = 0.95;

/// The five verdicts, worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Training records were rebuilt.
    Reconstructed,
    /// Members beat controls, but no single record can be named.
    Traces,
    /// The run cannot tell.
    Inconclusive,
    /// Nothing came back, and the attack is known to work at these settings.
    NotFound,
    /// No attack fits.
    NotApplicable,
}

impl Verdict {
    /// The verdict as files write it.
    pub fn name(self) -> String {
        self.headline().to_lowercase().replace(' ', "-")
    }

    /// The verdict in capitals, as reports and the command line show it.
    pub fn headline(self) -> &'static str {
        match self {
            Verdict::Reconstructed => "RECONSTRUCTED",
            Verdict::Traces => "TRACES",
            Verdict::Inconclusive => "INCONCLUSIVE",
            Verdict::NotFound => "NOT FOUND",
            Verdict::NotApplicable => "NOT APPLICABLE",
        }
    }
}

/// How many records passed a criterion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Members that passed.
    pub recovered: usize,
    /// Members.
    pub members: usize,
    /// Test controls that passed.
    pub control_recovered: usize,
    /// Test controls.
    pub controls: usize,
}

impl Count {
    /// Fisher's one-sided p.
    pub fn p_value(&self) -> f64 {
        fisher(self.recovered, self.members, self.control_recovered, self.controls)
    }

    /// Interval for the share of members that can be rebuilt.
    pub fn interval(&self) -> (f64, f64) {
        clopper_pearson(self.recovered, self.members, LEVEL)
    }
}

/// The outcome of the same attack on a twin that was built to leak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PositiveControl {
    /// Records the twin was built from.
    pub members: usize,
    /// Those that came back.
    pub recovered: usize,
    /// What the same rules say of the twin.
    pub verdict: Verdict,
}

/// Everything a verdict depends on.
#[derive(Debug, Clone, Default)]
pub struct Evidence {
    /// Passes, if there is a truth to compare with.
    pub count: Option<Count>,
    /// p-value, corrected if several attacks were run together; that of the count if absent.
    pub p_value: Option<f64>,
    /// Members that can be named.
    pub named: Option<Named>,
    /// Whether the candidates provably reproduce the observation.
    pub certified: bool,
    /// Of an attack that reads labels and rebuilds nothing: how many are right.
    pub labels: Option<LabelsRead>,
    /// The positive control, if one was run.
    pub positive_control: Option<PositiveControl>,
    /// Fewest controls the plan needs.
    pub controls_needed: usize,
    /// Other reasons why the run cannot tell.
    pub obstacles: Vec<String>,
    /// Why the attack does not apply, if it does not.
    pub not_applicable: Option<String>,
}

/// A verdict with its reasons.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The verdict.
    pub verdict: Verdict,
    /// Why, in sentences.
    pub reasons: Vec<String>,
}

impl Evidence {
    /// The verdict these facts allow.
    pub fn decide(&self) -> Decision {
        if let Some(reason) = &self.not_applicable {
            return Decision { verdict: Verdict::NotApplicable, reasons: vec![reason.clone()] };
        }
        let p = self.p_value.or(self.count.map(|count| count.p_value())).unwrap_or(1.0);
        let certificate = self.certified;
        let named = self.named.filter(|named| named.count > 0 && p <= SIGNIFICANT);
        if certificate || named.is_some() {
            let mut reasons = Vec::new();
            if certificate {
                reasons
                    .push("The candidates reproduce what was shared: the attacker knows that they are right.".into());
            }
            if let Some(Named { count, fdr }) = named {
                let share = 100.0 * fdr;
                reasons.push(format!(
                    "Members beat controls (p = {p:.2e}). {count} can be named; {share:.1} % of these are expected by \
                     chance."
                ));
            }
            return Decision { verdict: Verdict::Reconstructed, reasons };
        }
        if p <= SIGNIFICANT {
            let reason = match self.labels {
                Some(_) => {
                    format!("Labels say more of the batch than chance does (p = {p:.2e}); no record was rebuilt.")
                }
                None => format!("Members beat controls (p = {p:.2e}), but none stands out enough to be named."),
            };
            return Decision { verdict: Verdict::Traces, reasons: vec![reason] };
        }
        let obstacles = self.obstacles();
        if !obstacles.is_empty() {
            return Decision { verdict: Verdict::Inconclusive, reasons: obstacles };
        }
        let reason = match self.labels {
            Some(_) => "The labels say no more of the batch than chance does; those of a twin built to leak do.".into(),
            None => "Members do no better than controls, and the attack works on a twin built to leak.".into(),
        };
        Decision { verdict: Verdict::NotFound, reasons: vec![reason] }
    }

    /// What a run found alone and the correction for the others took away, if that is how it is: neither found nor not.
    fn lost(&self) -> Option<String> {
        let alone = self.labels.map(|labels| labels.p_value).or(self.count.map(|count| count.p_value()))?;
        let corrected = self.p_value.filter(|p| alone <= SIGNIFICANT && *p > SIGNIFICANT)?;
        Some(format!(
            "members beat controls in this run (p = {alone:.1e}), but not beyond doubt where several attacks were tried (corrected, p = \
             {corrected:.1e}). Do this: give more members and controls, or, where its steps were cut, all of them (--budget none)."
        ))
    }

    /// What keeps a run without finds from meaning anything.
    fn obstacles(&self) -> Vec<String> {
        let mut obstacles = self.obstacles.clone();
        match self.count {
            None => {
                obstacles.push(
                    "there are no records to compare with, and nothing is proven. Do this: give them with --members and --controls \
                     (of `afterimage score`, with --truth and --controls)."
                        .into(),
                );
                return obstacles;
            }
            Some(count) if count.controls < self.controls_needed => obstacles.push(format!(
                "{} controls are too few, {} are needed. Do this: give more records that were never trained on.",
                count.controls, self.controls_needed
            )),
            Some(_) => {}
        }
        match self.positive_control {
            // Something was found: that a twin leaks, too, would say nothing more of it.
            _ if let Some(lost) = self.lost() => obstacles.push(lost),
            // The clock ended it before, and that was said.
            None if !self.obstacles.is_empty() => {}
            None => obstacles.push(
                "no positive control was run, so it is not known whether the attack works at these settings. Do this: \
                 `afterimage audit` and `afterimage run` attack a twin that is built to leak; what was attacked alone has none."
                    .into(),
            ),
            // Whoever reads labels alone leaves no more than traces of anybody.
            Some(twin) if twin.verdict == Verdict::Traces && self.labels.is_some() => {}
            Some(twin) if twin.verdict == Verdict::Traces => obstacles.push(format!(
                "the attack only left traces of a twin built to leak: {} of {} records passed and none could be named. \
                 Do this: choose one that fits, or give it more iterations (more time, --budget, where an audit cut them short).",
                twin.recovered, twin.members
            )),
            Some(twin) if twin.verdict != Verdict::Reconstructed && 2 * twin.recovered > twin.members => obstacles.push(format!(
                "the rule tells nobody apart: of a twin built to leak {} of {} records passed, and so many of its controls that chance \
                 explains it. Do this: choose a stricter rule (score.criterion), or give more controls.",
                twin.recovered, twin.members
            )),
            Some(twin) if twin.verdict != Verdict::Reconstructed => obstacles.push(format!(
                "the attack is not known to work at these settings: of a twin it rebuilt {} of {} records, which its \
                 controls do not set apart from chance. Do this: choose one that fits, or give more controls, or more iterations (more \
                 time, --budget, where an audit cut them short).",
                twin.recovered, twin.members
            )),
            Some(_) => {}
        }
        obstacles
    }
}

impl Decision {
    /// The one sentence a reader takes away.
    pub fn sentence(&self, evidence: &Evidence) -> String {
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        if let (Some(LabelsRead { members, right, by_chance, .. }), Verdict::Traces | Verdict::NotFound) =
            (evidence.labels, self.verdict)
        {
            let than = if self.verdict == Verdict::Traces { "more" } else { "no more" };
            return format!(
                "{right} of {members} labels of the batch were read off what was shared, {than} than chance has right ({by_chance:.1} on \
                 average). No record was rebuilt."
            );
        }
        match (self.verdict, evidence.count) {
            (Verdict::Reconstructed, Some(Count { recovered: 0, members, .. })) => format!(
                "Records were rebuilt that provably reproduce what was shared. None of the {members} members is among them: they are \
                 other records, or are prepared otherwise than those were (range, normalisation)."
            ),
            (Verdict::Reconstructed, Some(count)) => {
                let (low, high) = count.interval();
                format!(
                    "{} of {} training records were rebuilt (95 % interval {}–{}). Of {} records the model never \
                     saw, {} passed the same test.",
                    count.recovered,
                    count.members,
                    percent(low),
                    percent(high),
                    count.controls,
                    count.control_recovered
                )
            }
            (Verdict::Reconstructed, None) => "Records were rebuilt that provably reproduce what was shared.".into(),
            (Verdict::Traces, _) => "The file carries information about its training records; no single record can \
                                     be named with confidence."
                .into(),
            (Verdict::NotFound, count) => {
                let found = match count {
                    Some(count) if count.recovered > 0 => format!(
                        "rebuilt no more than chance: {} of {} members and {} of {} controls passed",
                        count.recovered, count.members, count.control_recovered, count.controls
                    ),
                    Some(count) => {
                        format!("rebuilt none of {} (at most {}, 95 %)", count.members, percent(count.interval().1))
                    }
                    None => "rebuilt nothing".into(),
                };
                let twin = evidence.positive_control.map_or((0, 0), |twin| (twin.recovered, twin.members));
                format!(
                    "These attacks, with this budget, {found}. The same attack rebuilt {} of {} on a twin built to leak.",
                    twin.0, twin.1
                )
            }
            (Verdict::Inconclusive, _) => format!("This run cannot tell. Reason: {}", self.reasons.join(" Also: ")),
            (Verdict::NotApplicable, _) => "No attack here fits this model; nothing was tested.".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Direction;
    use afterimage_nn::Stream;

    const LEAKY: PositiveControl = PositiveControl { members: 10, recovered: 10, verdict: Verdict::Reconstructed };

    fn evidence(recovered: usize, members: usize, control_recovered: usize, controls: usize) -> Evidence {
        let fdr = crate::statistics::false_discovery(recovered, members, control_recovered, controls);
        let count = if fdr <= crate::score::FALSE_DISCOVERY { recovered } else { 0 };
        Evidence {
            count: Some(Count { recovered, members, control_recovered, controls }),
            named: Some(Named { count, fdr }),
            positive_control: Some(LEAKY),
            controls_needed: 100,
            ..Evidence::default()
        }
    }

    #[test]
    fn every_verdict_has_its_case_and_its_sentence() {
        let cases = [
            (
                evidence(20, 20, 0, 200),
                Verdict::Reconstructed,
                "20 of 20 training records were rebuilt (95 % interval 83 %–100 %)",
            ),
            (evidence(1, 1, 0, 200), Verdict::Reconstructed, "Of 200 records the model never saw, 0 passed"),
            (evidence(30, 100, 10, 100), Verdict::Traces, "no single record can be named"),
            (
                Evidence { p_value: Some(0.02), ..evidence(30, 100, 10, 100) },
                Verdict::Inconclusive,
                "but not beyond doubt where several attacks were tried (corrected, p = 2.0e-2)",
            ),
            (
                evidence(0, 20, 0, 200),
                Verdict::NotFound,
                "rebuilt none of 20 (at most 17 %, 95 %). The same attack rebuilt 10 of 10",
            ),
            (evidence(4, 4, 200, 200), Verdict::NotFound, "chance: 4 of 4 members and 200 of 200 controls passed"),
            (evidence(0, 20, 0, 50), Verdict::Inconclusive, "50 controls are too few, 100 are needed"),
            (
                Evidence { positive_control: None, ..evidence(0, 20, 0, 200) },
                Verdict::Inconclusive,
                "no positive control",
            ),
            (
                Evidence {
                    positive_control: Some(PositiveControl { recovered: 3, verdict: Verdict::NotFound, ..LEAKY }),
                    ..evidence(0, 20, 0, 200)
                },
                Verdict::Inconclusive,
                "rebuilt 3 of 10 records, which its controls do not set apart",
            ),
            (
                Evidence {
                    positive_control: Some(PositiveControl { recovered: 5, verdict: Verdict::Traces, ..LEAKY }),
                    ..evidence(0, 20, 0, 200)
                },
                Verdict::Inconclusive,
                "only left traces of a twin",
            ),
            (
                Evidence { not_applicable: Some("it needs a bias".into()), ..evidence(0, 20, 0, 200) },
                Verdict::NotApplicable,
                "nothing was tested",
            ),
            (Evidence { certified: true, ..Evidence::default() }, Verdict::Reconstructed, "provably reproduce"),
            (Evidence::default(), Verdict::Inconclusive, "no records to compare with"),
        ];
        for (evidence, verdict, part) in cases {
            let decision = evidence.decide();
            assert_eq!(decision.verdict, verdict, "{evidence:?}");
            let sentence = decision.sentence(&evidence);
            assert!(sentence.contains(part), "{sentence}");
            for word in ["safe", "pass the", "anonymous", "compliant", "low risk"] {
                assert!(!sentence.contains(word), "{sentence}");
            }
        }
    }

    #[test]
    fn what_is_proven_is_found_whatever_the_members_are() {
        let evidence = Evidence { certified: true, ..evidence(0, 5, 0, 200) };
        let decision = evidence.decide();
        assert_eq!(decision.verdict, Verdict::Reconstructed);
        let sentence = decision.sentence(&evidence);
        assert!(sentence.contains("None of the 5 members is among them"), "{sentence}");
    }

    /// Scores are standard normal, a member's higher by `lift`. The threshold is
    /// fixed, or the 99th percentile of the calibration half; passes are counted.
    fn simulate(stream: &mut Stream, members: usize, controls: usize, lift: f64, fixed: Option<f64>) -> Verdict {
        let mut draw = |lift: f64, count: usize| -> Vec<f64> { (0..count).map(|_| stream.normal() + lift).collect() };
        let (member, calibration, test) = (draw(lift, members), draw(0.0, controls / 2), draw(0.0, controls / 2));
        let threshold = fixed.unwrap_or_else(|| crate::criterion::calibrated(&calibration, Direction::Above));
        let passing = |scores: &[f64]| scores.iter().filter(|score| **score > threshold).count();
        let named = crate::score::named(&member, &test, threshold, Direction::Above);
        let counted = evidence(passing(&member), members, passing(&test), test.len());
        Evidence { named: Some(named), ..counted }.decide().verdict
    }

    #[test]
    fn a_useless_attack_is_almost_never_believed_and_a_perfect_one_always() {
        let mut stream = Stream::new(1, "verdicts", 0);
        for (members, controls) in [(1, 400), (20, 400), (100, 400), (200, 1000)] {
            let believed = (0..1000)
                .map(|_| simulate(&mut stream, members, controls, 0.0, None))
                .filter(|verdict| matches!(verdict, Verdict::Reconstructed | Verdict::Traces))
                .count();
            assert!(believed <= 10, "{believed} of 1000 with {members} members and {controls} controls");
            // A perfect attack, by a fixed line and, unless there is but one member, by a calibrated one.
            let fixed = Some(50.0);
            assert!(
                (0..1000).all(|_| simulate(&mut stream, members, controls, 100.0, fixed) == Verdict::Reconstructed)
            );
            if members > 1 {
                assert!(
                    (0..1000).all(|_| simulate(&mut stream, members, controls, 100.0, None) == Verdict::Reconstructed)
                );
            }
        }
    }
}
