//! Plots as SVG, drawn with the page's own colours.

use std::fmt::Write;

use afterimage_attacks::TracePoint;

use crate::findings::Findings;
use crate::metrics::Direction;

pub(super) const WIDTH: f64 = 720.0;
pub(super) const LEFT: f64 = 92.0;
pub(super) const RIGHT: f64 = 16.0;

/// Where the scores of members and of controls lie, on one axis, with the line
/// of the criterion: one dot a record.
pub(super) fn distributions(findings: &Findings) -> String {
    let criterion = &findings.criterion;
    let Some(scores) = findings.metrics.get(&criterion.metric) else { return String::new() };
    // Errors span many orders of magnitude: their axis is logarithmic.
    let logarithmic = criterion.better == Direction::Below;
    let place = |value: f64| if logarithmic { value.max(1e-18).log10() } else { value };
    let dots = |values: &[Option<f64>]| -> Vec<f64> { values.iter().flatten().map(|value| place(*value)).collect() };
    let (members, controls) = (dots(&scores.members), dots(&scores.control));
    let line = place(criterion.threshold);
    let all = members.iter().chain(&controls).chain([&line]);
    let (low, high) = all.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(*x), high.max(*x)));
    if !(low.is_finite() && high.is_finite()) {
        return String::new();
    }
    let margin = 0.05 * (high - low).max(1e-9);
    let (low, high) = (low - margin, high + margin);
    let x = |value: f64| LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT);
    let mut svg =
        format!("<svg viewBox=\"0 0 {WIDTH} 190\" role=\"img\" aria-label=\"Scores of members and controls\">");
    for (name, class, values, y) in [("members", "member", &members, 50.0), ("controls", "control", &controls, 110.0)] {
        let _ = write!(svg, "<text x=\"0\" y=\"{}\">{name} ({})</text>", y + 4.0, values.len());
        for (index, value) in values.iter().enumerate() {
            // Spread by the golden ratio from the middle, so that equal scores do not hide each other.
            let spread = ((0.5 + index as f64 * 0.618_034).fract() - 0.5) * 36.0;
            let _ = write!(svg, "<circle class=\"{class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"/>", x(*value), y + spread);
        }
    }
    let _ = write!(svg, "<line class=\"line\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"18\" y2=\"140\"/>", x(line));
    let _ = write!(svg, "<text class=\"small\" x=\"{:.1}\" y=\"13\" text-anchor=\"middle\">criterion</text>", x(line));
    for value in ticks(low, high, logarithmic) {
        let label = named(value, logarithmic);
        let _ =
            write!(svg, "<text class=\"small\" x=\"{:.1}\" y=\"158\" text-anchor=\"middle\">{label}</text>", x(value));
    }
    let better = if criterion.better == Direction::Below { "smaller is more alike" } else { "larger is more alike" };
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    let _ = write!(
        svg,
        "<text class=\"small\" x=\"{middle}\" y=\"180\" text-anchor=\"middle\">{} ({better})</text></svg>",
        criterion.metric
    );
    svg
}

/// A line through points, in the colours of its class.
pub(super) struct Line<'a> {
    /// In the legend; none if empty.
    pub(super) name: &'a str,
    pub(super) class: &'a str,
    pub(super) points: Vec<(f64, f64)>,
}

/// How points are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// Joined by a line.
    Joined,
    /// One dot each.
    Dots,
}

const HEIGHT: f64 = 240.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 44.0;

/// A pair of axes; a logarithmic one takes logarithms and labels powers.
pub(super) struct Axes<'a> {
    pub(super) names: [&'a str; 2],
    pub(super) logarithmic: [bool; 2],
    /// Places to be labelled on the first, with their labels; round numbers if there are none.
    pub(super) places: &'a [(f64, String)],
    /// A line across the first.
    pub(super) mark: Option<f64>,
    /// How points are drawn.
    pub(super) points: Mark,
}

impl<'a> Axes<'a> {
    pub(super) fn new(names: [&'a str; 2], logarithmic: [bool; 2]) -> Self {
        Self { names, logarithmic, places: &[], mark: None, points: Mark::Joined }
    }
}

/// Lines over one pair of axes.
pub(super) fn chart(label: &str, axes: &Axes<'_>, lines: &[Line]) -> String {
    let Axes { names, logarithmic: [log_x, log_y], places, mark, points: drawn } = *axes;
    let [label, x_name, y_name] = [label, names[0], names[1]].map(escaped);
    let all = || lines.iter().flat_map(|line| &line.points).filter(|(x, y)| x.is_finite() && y.is_finite());
    let range = |values: &mut dyn Iterator<Item = f64>| {
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), x| (a.min(x), b.max(x)));
        let margin = 0.03 * (high - low).max(1e-9);
        (low - margin, high + margin)
    };
    if all().next().is_none() {
        return String::new();
    }
    let (left, right) = range(&mut all().map(|(x, _)| *x).chain(mark));
    let (low, high) = range(&mut all().map(|(_, y)| *y));
    let x = |value: f64| LEFT + (value - left) / (right - left) * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - BOTTOM - TOP);
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{label}\">");
    for value in ticks(low, high, log_y) {
        let (at, text) = (y(value), named(value, log_y));
        let end = WIDTH - RIGHT;
        let _ = write!(svg, "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{end}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>");
        let _ = write!(
            svg,
            "<text class=\"small\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
            LEFT - 8.0,
            at + 4.0
        );
    }
    let round = || ticks(left, right, log_x).into_iter().map(|value| (value, named(value, log_x))).collect();
    let places: Vec<(f64, String)> = if places.is_empty() { round() } else { places.to_vec() };
    for (value, text) in places {
        let (at, text) = (x(value), escaped(&text));
        let below = HEIGHT - BOTTOM + 16.0;
        let _ = write!(svg, "<text class=\"small\" x=\"{at:.1}\" y=\"{below}\" text-anchor=\"middle\">{text}</text>");
    }
    if let Some(mark) = mark {
        let (at, end) = (x(mark), HEIGHT - BOTTOM);
        let _ = write!(svg, "<line class=\"line\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{end}\"/>");
    }
    for (index, line) in lines.iter().enumerate() {
        let mut points = String::new();
        for (px, py) in line.points.iter().filter(|(x, y)| x.is_finite() && y.is_finite()) {
            let _ = write!(points, "{:.1},{:.1} ", x(*px), y(*py));
        }
        let class = line.class;
        match drawn {
            Mark::Joined => drop(write!(svg, "<polyline class=\"curve {class}\" points=\"{points}\"/>")),
            Mark::Dots => {
                for (px, py) in line.points.iter().filter(|(x, y)| x.is_finite() && y.is_finite()) {
                    let (px, py) = (x(*px), y(*py));
                    let _ = write!(svg, "<circle class=\"{class}\" cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"3\"/>");
                }
            }
        }
        let from = LEFT + 120.0 * index as f64;
        if lines.len() > 1 && !line.name.is_empty() {
            let _ = write!(svg, "<rect class=\"{class}\" x=\"{from}\" y=\"4\" width=\"10\" height=\"10\"/>");
            let _ = write!(svg, "<text class=\"small\" x=\"{}\" y=\"13\">{}</text>", from + 15.0, escaped(line.name));
        }
    }
    let (middle, bottom) = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 6.0);
    let _ = write!(svg, "<text class=\"small\" x=\"{middle}\" y=\"{bottom}\" text-anchor=\"middle\">{x_name}</text>");
    let _ = write!(
        svg,
        "<text class=\"small\" transform=\"translate(12 {}) rotate(-90)\" text-anchor=\"middle\">{y_name}</text></svg>",
        HEIGHT / 2.0
    );
    svg
}

/// A place on an axis as its label says it; on a logarithmic one the place is a logarithm.
pub(super) fn named(value: f64, logarithmic: bool) -> String {
    match logarithmic {
        true if value == value.round() => format!("1e{value}"),
        true => format!("{:.0e}", 10_f64.powf(value)),
        false if value.abs() >= 1000.0 || value == value.round() => format!("{value:.0}"),
        false => format!("{value:.2}"),
    }
}

/// Text as it may stand in a page or in an attribute of it.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The share of members and of controls beyond every line that could have been drawn.
pub(super) fn rates(findings: &Findings) -> String {
    let criterion = &findings.criterion;
    let Some(scores) = findings.metrics.get(&criterion.metric) else { return String::new() };
    let logarithmic = criterion.better == Direction::Below;
    let place = |value: f64| if logarithmic { value.max(1e-18).log10() } else { value };
    let steps = |values: &[Option<f64>]| -> Vec<(f64, f64)> {
        let mut sorted: Vec<Option<f64>> = values.to_vec();
        sorted.sort_by(|a, b| criterion.compare(*a, *b));
        let each = 1.0 / sorted.len().max(1) as f64;
        let step = |(index, value): (usize, &f64)| {
            let (before, after) = (index as f64 * each, (index + 1) as f64 * each);
            [(place(*value), 100.0 * before), (place(*value), 100.0 * after)]
        };
        sorted.iter().flatten().enumerate().flat_map(step).collect()
    };
    let lines = [
        Line { name: "members", class: "member", points: steps(&scores.members) },
        Line { name: "controls", class: "control", points: steps(&scores.control) },
    ];
    let names = [criterion.metric.name(), "% beyond the line"];
    let axes = Axes { mark: Some(place(criterion.threshold)), ..Axes::new(names, [logarithmic, false]) };
    chart("Share rebuilt against the line", &axes, &lines)
}

/// Distances of the closest pairs, closest first.
pub(super) fn curve(members: &[f64], controls: &[f64]) -> String {
    let points =
        |values: &[f64]| values.iter().enumerate().map(|(index, value)| ((index + 1) as f64, *value)).collect();
    let lines = [
        Line { name: "members", class: "member", points: points(members) },
        Line { name: "controls", class: "control", points: points(controls) },
    ];
    if members.len() < 2 {
        return String::new();
    }
    chart("Reconstruction curve", &Axes::new(["pair", "l2 distance"], [false, false]), &lines)
}

/// What the owner knew of each record against how far the nearest candidate is.
pub(super) fn exposure(alpha: &[f64], scores: &[Option<f64>], metric: &str) -> String {
    let pairs = alpha.iter().zip(scores).filter_map(|(alpha, score)| Some((*alpha, (*score)?)));
    let points: Vec<(f64, f64)> = pairs.filter(|(alpha, _)| *alpha > 0.0).map(|(a, s)| (a.log10(), s)).collect();
    if points.len() < 3 {
        return String::new();
    }
    let axes = Axes { points: Mark::Dots, ..Axes::new(["|α|", metric], [true, false]) };
    chart("Exposure before training against the score", &axes, &[Line { name: "", class: "member", points }])
}

/// The attacker's own loss.
pub(super) fn trace(trace: &[TracePoint]) -> String {
    let positive = trace.iter().all(|point| point.loss > 0.0);
    let place = |loss: f64| if positive { loss.log10() } else { loss };
    let points = trace.iter().map(|point| (point.iteration as f64, place(point.loss))).collect();
    let line = [Line { name: "loss", class: "loss", points }];
    chart("The attacker's loss", &Axes::new(["iteration", "loss"], [false, positive]), &line)
}

/// A handful of round numbers inside a range: whole powers on a logarithmic
/// axis, multiples of 1, 2 or 5 times a power of ten otherwise.
pub(super) fn ticks(low: f64, high: f64, logarithmic: bool) -> Vec<f64> {
    // Within two powers of ten, 1, 2 and 5 times them.
    if logarithmic && high - low < 2.0 {
        let powers = low.floor() as i64..=high.ceil() as i64;
        let each = powers.flat_map(|power| [1.0_f64, 2.0, 5.0].map(|step| power as f64 + step.log10()));
        return each.filter(|value| (low..=high).contains(value)).collect();
    }
    let rough = (high - low) / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let nice = [1.0, 2.0, 5.0, 10.0].map(|step| step * power).into_iter().find(|step| *step >= rough);
    let step = nice.unwrap_or(rough).max(if logarithmic { 1.0 } else { 0.01 });
    let first = (low / step).ceil() as i64;
    (first..=(high / step).floor() as i64).map(|index| index as f64 * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(ticks(-18.9, 0.3, true), [-15.0, -10.0, -5.0, 0.0]);
        assert_eq!(ticks(-0.05, 1.05, false), [0.0, 0.5, 1.0]);
        assert_eq!(ticks(3.2, 5.4, true), [4.0, 5.0]);
        assert_eq!(ticks(-0.8, -0.2, true), [-1.0 + 2.0_f64.log10(), -1.0 + 5.0_f64.log10()]);
        let labels: Vec<String> = ticks(-0.8, 0.1, true).into_iter().map(|place| named(place, true)).collect();
        assert_eq!(labels, ["2e-1", "5e-1", "1e0"]);
        assert_eq!(escaped("a \"<b>\" & c"), "a &quot;&lt;b&gt;&quot; &amp; c");
    }
}
