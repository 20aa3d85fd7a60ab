//! The report: one page that a privacy officer can read, with nothing outside it.

use afterimage_attacks::{Card, TracePoint};
use maud::{Markup, PreEscaped, html};

use super::classifier::{self, Plane};
use super::page::{closing, measured, page, percent, prose, short, verdict_box};
use super::recovery::{self, MaskPicture, Way};
use super::{labels, nobody, picture, plot};
use crate::defences::{Measured, Row};
use crate::findings::{Findings, Interval};
use crate::metrics::{Direction, Metric};
use crate::score::Space;
use crate::verdict::Verdict;
use crate::words::capitalised;

/// Records beside what was rebuilt of them, in [0, 1].
#[derive(Debug, Clone, Default)]
pub struct Pictures {
    /// Shape of a record.
    pub shape: Vec<usize>,
    /// (place among the members, record, nearest candidate).
    pub members: Vec<(usize, Vec<f64>, Vec<f64>)>,
    /// (score, record, nearest candidate) of the test controls that came closest.
    pub controls: Vec<(f64, Vec<f64>, Vec<f64>)>,
    /// (whether it is proven, candidate), proven first, where nobody is known to compare with.
    pub alone: Vec<(bool, Vec<f64>)>,
    /// (output, score) of each member, of a classifier with one output.
    pub outputs: Vec<(f64, f64)>,
    /// The plane, of records with two numbers.
    pub plane: Option<Plane>,
    /// From damaged samples to what came back, of some members.
    pub ways: Vec<Way>,
    /// The mask they were damaged by.
    pub mask: Option<MaskPicture>,
}

/// Everything a report shows.
pub struct Report<'a> {
    /// The numbers.
    pub findings: &'a Findings,
    /// The attack.
    pub card: Card,
    /// The plan, every default written out.
    pub plan: &'a str,
    /// What the observation holds, one fact a line.
    pub shared: &'a [String],
    /// When the run was made.
    pub date: &'a str,
    /// Whether controls set the line.
    pub calibrated: bool,
    /// The commands that make it again.
    pub commands: &'a [String],
    /// The attacker's loss on the way.
    pub trace: &'a [TracePoint],
    /// What would have stopped it, if that was measured.
    pub defences: Option<&'a Measured>,
    /// Pictures; none in the public copy, which names no record either.
    pub pictures: Option<&'a Pictures>,
}

impl Report<'_> {
    /// The page.
    pub fn render(&self) -> String {
        let findings = self.findings;
        let content = html! {
            h1 { "Afterimage audit, " (self.date) }
            (verdict_box(findings.verdict, &findings.sentence))
            p { "Model " code { (findings.model_sha256) } }
            h2 { "What was shared" }
            (self.shared())
            h2 { "The attacker" }
            p { (prose(self.card.attacker)) }
            p { (prose(self.card.method)) " The attack took " (short(findings.seconds)) " s on this machine." }
            h2 { "Results" }
            @if let Some(read) = findings.labels.filter(|_| findings.labels_alone()) {
                (labels::results(read))
                @for reason in self.unsaid() { p { (prose(&capitalised(reason))) } }
            } @else if findings.members == 0 {
                (nobody::results(findings))
                @if let Some(pictures) = self.pictures { (nobody::gallery(pictures)) }
                (self.loss())
            } @else {
                (self.results())
                (self.exposed())
                (self.gallery())
                (self.damaged())
                (self.classifier())
                (self.curves())
                (self.loss())
                (self.exposure())
            }
            h2 { "What this does not show" }
            ul {
                li { "A report is a lower bound: other attacks, more time or more knowledge may bring back more." }
                li { (prose(self.card.limits)) }
                @for warning in &findings.warnings { li { (prose(warning)) } }
            }
            h2 { "What to change" }
            ul { @for defence in self.card.defences { li { (prose(defence)) } } }
            (self.measured())
            h2 { "Reproduce" }
            (self.reproduce())
            (closing(&findings.tool))
        };
        page(findings.verdict, &content)
    }

    /// Defences, measured on twins.
    fn measured(&self) -> Markup {
        let Some(Measured { rows, left_out }) = self.defences else {
            return html! { p { "None of this was measured for this run: " code { "afterimage defences RUN" } " does so." } };
        };
        if rows.first().is_none_or(|bare| bare.recovered == 0) {
            return html! { p { "Defences were tried on twins, which are of other records and often fewer; of the one without a defence nothing came back, so that nothing can be said of defences. What this run found stands." } };
        }
        html! {
            p { "Measured: the same attack, at the same settings, on twins that are made of records the model never saw and that share what this one shares, each with one thing changed. Recognisable is what has a mean squared error below 1e-2. Where controls set the line, each row has a line of its own." }
            div class="scroll" { table data-sortable {
                thead { tr { @for name in ["defence", "rebuilt", "controls", "recognisable"] { th { button { (name) } } } } }
                tbody { @for row in rows { tr {
                    td { (row.defence) }
                    td data-value=(row.recovered) { @if row.members > 0 && row.obstacle.is_none() { (row.recovered) " of " (row.members) " (" (interval(row)) ")" } @else { "–" } }
                    td data-value=(row.control_recovered) { @if row.controls > 0 && row.obstacle.is_none() { (row.control_recovered) " of " (row.controls) } @else { "–" } }
                    td { @match row.recognisable { Some((members, controls)) => { (members) " of " (row.members) @if controls > 0 { " (controls " (controls) ")" } } None => "–" } }
                } } }
            } }
            p { "In brackets 95 % intervals: a defence whose interval lies apart from that of the first row makes a difference; where they overlap, so few records may not show one."
                @if rows[0].members < self.findings.members { " Twins have " (rows[0].members) " records, and this run " (self.findings.members) ": fewer are easier to rebuild." } }
            @if rows.iter().any(|row| row.obstacle.is_some()) {
                ul { @for row in rows { @if let Some(obstacle) = &row.obstacle { li { (capitalised(&row.defence)) ": " (prose(obstacle)) } } } }
            }
            @if !left_out.is_empty() { p { "Not measured, for want of time: " (left_out.join("; ")) ". " code { "afterimage defences RUN" } " takes as long as it is given." } }
        }
    }

    fn shared(&self) -> Markup {
        html! {
            p { (capitalised(&self.findings.observation.to_string())) ". What the attack was told, and what it was not; it was given nothing else:" }
            ul { @for fact in self.shared { li { (prose(fact)) } } }
        }
    }

    fn results(&self) -> Markup {
        let findings = self.findings;
        let identification = &findings.identification;
        let criterion = &findings.criterion;
        let side = if criterion.better == Direction::Below { "below" } else { "above" };
        html! {
            ul class="facts" {
                li { b { (identification.hits) " of " (findings.members) } span { "members identified among " (identification.pool) " records" @if identification.space == Space::Features { ", by the network's own features" } " (95 % interval " (percent(identification.interval.low)) " to " (percent(identification.interval.high)) "; of controls, by the same rule, " (identification.control_hits) " of " (findings.controls) ")" } }
                li { b { (findings.recovered) " of " (findings.members) } span { "members rebuilt (95 % interval " (percent(findings.interval.low)) " to " (percent(findings.interval.high)) ")" } }
                li { b { (findings.control_recovered) " of " (findings.controls) } span { "controls, never trained on, that passed the same test" } }
                li { b { @match findings.positive_control { Some(twin) => { (twin.recovered) " of " (twin.members) }, None => "–" } } span { @if findings.positive_control.is_some() { "rebuilt on a twin built to leak" } @else if matches!(findings.verdict, Verdict::Reconstructed | Verdict::Traces) { "no twin was needed: something was found" } @else { "no twin was attacked" } } }
            }
            p { "A record counts as rebuilt if its nearest candidate has " (criterion.metric) " " (side) " " (measured(criterion.threshold, criterion.metric)) ". " @if self.calibrated { "That is where 99 % of the held-back controls fall: closer than chance, which need not be alike. " } @if findings.rules_fixed { "The rule was fixed before the attack ran." } @else { "The rule was chosen after the attack ran." } }
            @if let Some((members, controls)) = findings.recognisable { p { "Recognisable, with a mean squared error below 1e-2: " (members) " of " (findings.members) " members and " (controls) " of " (findings.controls) " controls." } }
            p { "A member is identified if, of all " (identification.pool) " records, it is the one nearest to the candidate that is nearest to it. Where controls are identified as often, that says nothing." }
            @for also in &findings.also { p { "With the line at " (short(also.threshold)) ": " (also.recovered) " of " (findings.members) " members and " (also.control_recovered) " of " (findings.controls) " controls." } }
            p { "Chance of such a result if members and controls were alike: p = " (short(findings.p_value)) "." @if findings.named > 0 { " Expected share of false finds among the members that can be named: " (percent(findings.fdr)) "." } }
            @if let Some(learnt) = findings.learnt { p { "The classifier itself: on its own records a mean loss of " (short(learnt.loss)) " and " (percent(learnt.accuracy)) " told right; on records it never saw " (short(learnt.control_loss)) " and " (percent(learnt.control_accuracy)) "." } }
            @if let Some(read) = findings.labels { (labels::line(read)) }
            @for reason in self.unsaid() { p { (prose(&capitalised(reason))) } }
        }
    }

    /// Reasons that the sentence does not give.
    fn unsaid(&self) -> impl Iterator<Item = &str> {
        let findings = self.findings;
        let said = |reason: &str| findings.sentence.contains(reason) || reason.starts_with("Members beat controls");
        findings.reasons.iter().map(String::as_str).filter(move |reason| !said(reason))
    }

    /// Who was exposed, as the owner could tell before training.
    fn exposure(&self) -> Markup {
        let Some(exposure) = &self.findings.exposure else { return html! {} };
        let metric = self.findings.criterion.metric;
        let scores = self.findings.metrics.get(&metric);
        html! {
            h2 { "Who was exposed before training" }
            p { "|α| is the weight a record gets in the change of the weights while training stays near its start, K₀⁻¹(y − f₀). \
                 Its owner can compute it without training and without an attack: a record with a small one is predicted by the others, and little of it is in the change." }
            p { @match exposure.correlation {
                    Some(correlation) => { "Rank correlation with how far the nearest candidate is: " (format!("{correlation:.2}")) " (−1: |α| tells the order of exposure; 0: it tells nothing)." }
                    None => "There are too few records, or all are equally near, for a correlation.",
                }
                @if let Some(distance) = exposure.kernel_distance { " Training moved the tangent kernel by a distance of " (short(distance)) " (0: not at all, 1: to another kernel)." }
                @if let Some(foretold) = exposure.foretold() { " Rank correlation of |α| with how much each record drove training: " (format!("{foretold:.2}")) "." } }
            @if let Some(scores) = scores { (PreEscaped(plot::exposure(&exposure.alpha, &scores.members, metric.name()))) }
        }
    }

    /// The table of records, most exposed first.
    fn exposed(&self) -> Markup {
        let findings = self.findings;
        let names: Vec<Metric> = findings.metrics.keys().copied().collect();
        html! {
            h2 { "Records, most exposed first" }
            label { "Filter " input type="search" data-filter="records" aria-label="Filter the records"; }
            div class="scroll" {
                table id="records" data-sortable {
                    thead { tr {
                        th { button { "record" } }
                        th { button { "rebuilt" } }
                        @for name in &names { th { button { (name) } } }
                    } }
                    tbody {
                        @for (rank, index) in findings.most_exposed().into_iter().enumerate() {
                            tr {
                                td { @if self.pictures.is_some() { (findings.sample_ids.get(index).map_or("?", String::as_str)) } @else { "#" (rank + 1) } }
                                td { @if findings.rebuilt(index) { "yes" } @else { "no" } }
                                @for name in &names {
                                    @match findings.score(*name, index) {
                                        Some(value) => td data-value=(value) { (short(value)) },
                                        None => td data-value="" { "–" },
                                    }
                                }
                            }
                        }
                    }
                }
            }
            details {
                summary { "What the columns say" }
                ul { @for name in &names { li { b { (name) } ": " (name.meaning()) @if !name.unit().is_empty() { ", in" (name.unit()) } "; " (if name.better() == Direction::Below { "less" } else { "more" }) " is more alike" } } }
            }
        }
    }

    fn gallery(&self) -> Markup {
        let Some(pictures) = self.pictures else { return html! {} };
        let findings = self.findings;
        let drawn =
            |pixels: &Vec<f64>| picture::brightened(pixels, &pictures.shape, picture::brightness(pixels)).is_some();
        if !pictures.members.first().is_some_and(|(_, record, _)| drawn(record)) {
            return html! {};
        }
        let figure = |record: &[f64], candidate: &[f64], caption: String, what: &str| {
            let scale = picture::brightness(record);
            let image = |pixels: &[f64]| picture::brightened(pixels, &pictures.shape, scale);
            let images = image(record).zip(image(candidate));
            html! { @if let Some((record, candidate)) = images {
                li { figure {
                    img src=(record) alt=(format!("{what}, original"));
                    img src=(candidate) alt=(format!("{what}, nearest candidate"));
                    figcaption { (caption) }
                } }
            } }
        };
        html! {
            h2 { "Pictures" }
            p { "Members, original left and rebuilt right, best first:" }
            ul class="pairs" { @for (index, record, candidate) in &pictures.members {
                (figure(record, candidate, format!("{}: {} {}", findings.sample_ids.get(*index).map_or("?", String::as_str), findings.criterion.metric, findings.criterion_score(*index).map_or("–".into(), |score| measured(score, findings.criterion.metric))), "member"))
            } }
            p { "Controls that came closest, beside the candidate nearest to them: what chance looks like." }
            ul class="pairs" { @for (score, record, candidate) in &pictures.controls {
                (figure(record, candidate, format!("control: {} {}", findings.criterion.metric, measured(*score, findings.criterion.metric)), "control"))
            } }
        }
    }

    /// From damaged samples to what came back.
    fn damaged(&self) -> Markup {
        html! {
            @if let Some(pictures) = self.pictures { (recovery::ways(pictures)) (recovery::masks(pictures.mask.as_slice())) }
            (recovery::separation(self.findings.separation.as_ref()))
        }
    }

    /// How the classifier answers to what came back.
    fn classifier(&self) -> Markup {
        let Some(pictures) = self.pictures else { return html! {} };
        html! {
            @if let Some(plane) = &pictures.plane {
                h2 { "The plane" }
                p { "Shaded where the output is positive. Dots are members, by the sign of the output there; crosses are candidates, and faint dots those that the search gave up." }
                (PreEscaped(classifier::plane(plane)))
            }
            @if pictures.outputs.len() > 1 {
                h2 { "Scores against outputs" }
                p { "Records on the margin carry the weights of a classifier trained to its end; those beyond it do not." }
                (PreEscaped(classifier::against_output(&pictures.outputs, self.findings.criterion.metric)))
            }
        }
    }

    /// Scores of everybody, how many come back at every line, the closest pairs.
    fn curves(&self) -> Markup {
        let findings = self.findings;
        html! {
            h2 { "Scores of members and controls" }
            (PreEscaped(plot::distributions(findings)))
            p { "How many would count as rebuilt, wherever the line was drawn:" }
            (PreEscaped(plot::rates(findings)))
            @if let Some((members, controls)) = findings.curve().filter(|(members, _)| members.len() > 1) {
                h2 { "Reconstruction curve" }
                p { "The closest pairs of record and candidate, closest first, each candidate used once. Controls show what chance gives." }
                (PreEscaped(plot::curve(&members, &controls)))
            }
        }
    }

    fn loss(&self) -> Markup {
        html! { @if self.trace.len() > 1 {
            h2 { "The attacker's loss" }
            (PreEscaped(plot::trace(self.trace)))
        } }
    }

    fn reproduce(&self) -> Markup {
        html! {
            @if self.pictures.is_some() { pre { (self.commands.join("\n")) } }
            p { "Seed " (self.findings.seed) ", plan " code { (self.findings.plan_sha256) } "." }
            @if self.pictures.is_some() { details { summary { "The plan, every default written out" } pre { (self.plan) } } }
        }
    }
}

/// The share of a twin's records that came back, as an interval.
fn interval(row: &Row) -> String {
    let Interval { low, high, .. } = Interval::of(row.recovered, row.members);
    format!("{:.0}–{:.0} %", 100.0 * low, 100.0 * high)
}
