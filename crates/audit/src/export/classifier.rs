//! Plots of classifiers whose weights were shared: scores against outputs, and the plane.

use std::fmt::Write;

use crate::metrics::{Direction, Metric};

use super::plot::{LEFT, RIGHT, WIDTH, named, ticks};

/// What a classifier of records with two numbers looks like.
#[derive(Debug, Clone, Default)]
pub struct Plane {
    /// The square that is drawn reaches from −reach to reach in both directions.
    pub reach: f64,
    /// Whether the output is positive, row by row from the top, on a square grid.
    pub positive: Vec<bool>,
    /// Records and whether their output is positive.
    pub members: Vec<([f64; 2], bool)>,
    /// Candidates.
    pub candidates: Vec<[f64; 2]>,
    /// Candidates that the search gave up.
    pub dropped: Vec<[f64; 2]>,
}

/// Cells of the grid along a side.
pub const GRID: usize = 96;

/// (output, score) of each member as dots, with lines at the margin: records with
/// weight in the solution lie there.
pub(super) fn against_output(points: &[(f64, f64)], metric: Metric) -> String {
    const HEIGHT: f64 = 260.0;
    const TOP: f64 = 16.0;
    const BOTTOM: f64 = 48.0;
    // Errors span many orders of magnitude.
    let logarithmic = metric.better() == Direction::Below;
    let place = |score: f64| if logarithmic { score.max(1e-18).log10() } else { score };
    let points: Vec<(f64, f64)> = points.iter().map(|(output, score)| (*output, place(*score))).collect();
    let span = |values: &mut dyn Iterator<Item = f64>| {
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)))
    };
    let (left, right) = span(&mut points.iter().map(|point| point.0).chain([0.0]));
    let (low, high) = span(&mut points.iter().map(|point| point.1));
    let margin = points.iter().map(|point| point.0.abs()).fold(f64::INFINITY, f64::min);
    if !(left < right && low.is_finite() && high.is_finite() && margin.is_finite()) {
        return String::new();
    }
    let (pad_x, pad_y) = (0.05 * (right - left), 0.08 * (high - low).max(1e-9));
    let (left, right, low, high) = (left - pad_x, right + pad_x, low - pad_y, high + pad_y);
    let x = |value: f64| LEFT + (value - left) / (right - left) * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Scores against outputs\">");
    for at in [-margin, margin].into_iter().filter(|at| (left..=right).contains(at)) {
        let _ = write!(
            svg,
            "<line class=\"line\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{TOP}\" y2=\"{1:.1}\"/>",
            x(at),
            HEIGHT - BOTTOM
        );
    }
    for (output, score) in &points {
        let _ = write!(svg, "<circle class=\"member\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\"/>", x(*output), y(*score));
    }
    for value in ticks(left, right, false) {
        let label = named(value, false);
        let _ = write!(
            svg,
            "<text class=\"small\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
            x(value),
            HEIGHT - BOTTOM + 16.0
        );
    }
    for value in ticks(low, high, logarithmic) {
        let label = named(value, logarithmic);
        let _ = write!(
            svg,
            "<text class=\"small\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            LEFT - 8.0,
            y(value) + 4.0
        );
    }
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    let _ = write!(
        svg,
        "<text class=\"small\" x=\"{middle}\" y=\"{:.1}\" text-anchor=\"middle\">output of the network (lines: the \
         smallest, the margin)</text><text class=\"small\" x=\"0\" y=\"{TOP}\">{metric}</text></svg>",
        HEIGHT - 8.0
    );
    svg
}

/// The decision surface, records as dots and candidates as crosses.
pub(super) fn plane(plane: &Plane) -> String {
    const SIZE: f64 = 480.0;
    if plane.positive.len() != GRID * GRID || plane.reach <= 0.0 {
        return String::new();
    }
    let at = |value: f64| (value / plane.reach + 1.0) / 2.0 * SIZE;
    let cell = SIZE / GRID as f64;
    let mut svg = format!(
        "<svg class=\"plane\" viewBox=\"0 0 {SIZE} {SIZE}\" role=\"img\" aria-label=\"Decision surface\">\
         <rect width=\"{SIZE}\" height=\"{SIZE}\" fill=\"none\" stroke=\"currentColor\" stroke-opacity=\"0.3\"/>"
    );
    // One rectangle for each run of positive cells.
    for (row, cells) in plane.positive.chunks_exact(GRID).enumerate() {
        let mut column = 0;
        while column < GRID {
            let run = cells[column..].iter().take_while(|positive| **positive).count();
            if run > 0 {
                let (x, y, width) = (column as f64 * cell, row as f64 * cell, run as f64 * cell);
                let _ = write!(
                    svg,
                    "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{cell:.2}\" \
                     fill=\"currentColor\" fill-opacity=\"0.12\"/>"
                );
            }
            column += run.max(1);
        }
    }
    for [x, y] in &plane.dropped {
        let _ = write!(
            svg,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.5\" fill=\"currentColor\" fill-opacity=\"0.3\"/>",
            at(*x),
            at(-*y)
        );
    }
    for ([x, y], positive) in &plane.members {
        let class = if *positive { "member" } else { "control" };
        let _ = write!(svg, "<circle class=\"{class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"6\"/>", at(*x), at(-*y));
    }
    for [x, y] in &plane.candidates {
        let (x, y) = (at(*x), at(-*y));
        let _ = write!(
            svg,
            "<path d=\"M{:.1} {:.1}l8 8m0 -8l-8 8\" stroke=\"currentColor\" stroke-width=\"1.5\" fill=\"none\"/>",
            x - 4.0,
            y - 4.0
        );
    }
    svg.push_str("</svg>");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_is_drawn_and_nothing_is_not() {
        let svg = against_output(&[(-2.0, 0.1), (3.0, 0.9)], Metric::Ssim3);
        assert_eq!((svg.matches("<circle").count(), svg.matches("<line").count()), (2, 2));
        assert_eq!(against_output(&[], Metric::L2), "");
        assert_eq!(plane(&Plane::default()), "");
        let positive = (0..GRID * GRID).map(|cell| cell % GRID < 10).collect();
        let members = vec![([0.5, 0.5], true), ([-0.5, 0.0], false)];
        let (candidates, dropped) = (vec![[0.5, 0.5]], vec![[0.0, 0.0]]);
        let drawn = plane(&Plane { reach: 1.0, positive, members, candidates, dropped });
        assert_eq!((drawn.matches("<circle").count(), drawn.matches("<path").count()), (2 + 1, 1));
        assert_eq!(drawn.matches("0.12").count(), GRID);
    }
}
