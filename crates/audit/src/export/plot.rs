//! Plots as SVG, drawn with the page's own colours.

use std::fmt::Write;

use crate::findings::Findings;
use crate::metrics::Direction;

const WIDTH: f64 = 720.0;
const LEFT: f64 = 92.0;
const RIGHT: f64 = 16.0;

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
        let label = if logarithmic { format!("1e{value}") } else { format!("{value:.2}") };
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

/// A handful of round numbers inside a range: whole powers on a logarithmic
/// axis, multiples of 1, 2 or 5 times a power of ten otherwise.
fn ticks(low: f64, high: f64, logarithmic: bool) -> Vec<f64> {
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
        assert_eq!(ticks(3.2, 5.1, true), [4.0, 5.0]);
    }
}
