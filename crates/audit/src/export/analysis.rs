//! What runs from two checkpoints say together: reconstruction curves, kernel distance and |α|
//! against errors, |α| against what drove training (figures 2, 3, 7 and 11 of Loo et al., 2023).

use maud::{Markup, PreEscaped, html};

use super::figure::{class, number};
use super::plot::{self, Axes, Line, Mark};
use crate::figure::{Analysis, Figure};
use crate::statistics::spearman;

/// The plots; nothing for figures of other runs.
pub(super) fn analyses(figure: &Figure) -> Markup {
    if figure.analyses.is_empty() {
        return html! {};
    }
    html! {
        (curves(figure))
        (kernel(figure))
        (weights(figure))
        (driven(figure))
    }
}

/// Colours and what they stand for.
pub(super) fn legend(names: impl Iterator<Item = (usize, String)>) -> Markup {
    html! { ul class="legend" { @for (index, name) in names { li { span class=(class(index)) {} (name) } } } }
}

fn of_curves(figure: &Figure) -> Markup {
    legend(figure.curves.iter().enumerate().map(|(index, curve)| (index, curve.name.clone())))
}

/// Mean over seeds of the distances of the closest pairs, one line for every curve of the figure.
fn curves(figure: &Figure) -> Markup {
    let Some(first) = figure.curves.first() else { return html! {} };
    let metric = figure.criterion.metric.name();
    html! {
        h2 { "Reconstruction curves" }
        p { "The closest pair of a record and a candidate is taken out of the pool, then the next; mean over seeds." }
        (of_curves(figure))
        @for (place, point) in first.points.iter().enumerate() {
            h3 { (figure.x) " " (number(point.x)) }
            @let classes: Vec<String> = (0..figure.curves.len()).map(class).collect();
            @let lines: Vec<Line<'_>> = classes.iter().enumerate().map(|(curve, class)| {
                Line { name: "", class, points: mean_curve(figure.analyses.iter().filter(|of| (of.curve, of.point) == (curve, place))) }
            }).collect();
            (PreEscaped(plot::chart("Reconstruction curves", &Axes::new(["pair", metric], [false, false]), &lines)))
        }
    }
}

fn mean_curve<'a>(of: impl Iterator<Item = &'a Analysis>) -> Vec<(f64, f64)> {
    let all: Vec<&[f64]> = of.map(|analysis| analysis.pairs.as_slice()).collect();
    let length = all.iter().map(|pairs| pairs.len()).min().unwrap_or(0);
    let mean = |place: usize| all.iter().map(|pairs| pairs[place]).sum::<f64>() / all.len() as f64;
    (0..length).map(|place| ((place + 1) as f64, mean(place))).collect()
}

/// Dots, one list for every curve of the figure, with the correlation over all of them.
fn scatter(figure: &Figure, title: &str, names: [&str; 2], dots: &dyn Fn(&Analysis) -> Vec<(f64, f64)>) -> Markup {
    let classes: Vec<String> = (0..figure.curves.len()).map(class).collect();
    let of = |curve: usize| figure.analyses.iter().filter(move |of| of.curve == curve).flat_map(dots);
    let log = |(x, y): (f64, f64)| (x.max(1e-12).log10(), y);
    let lines: Vec<Line<'_>> = classes
        .iter()
        .enumerate()
        .map(|(curve, class)| Line { name: "", class, points: of(curve).map(log).collect() })
        .collect();
    let (x, y): (Vec<f64>, Vec<f64>) = figure.analyses.iter().flat_map(dots).unzip();
    let axes = Axes { points: Mark::Dots, ..Axes::new(names, [true, false]) };
    html! {
        h2 { (title) }
        @if let Some(correlation) = spearman(&x, &y) { p { "Rank correlation " (format!("{correlation:.2}")) " over " (x.len()) " dots." } }
        (of_curves(figure))
        (PreEscaped(plot::chart(title, &axes, &lines)))
    }
}

fn kernel(figure: &Figure) -> Markup {
    let y = format!("mean {}", figure.criterion.metric);
    scatter(figure, "Kernel distance against mean error", ["d(K₀, K_f)", &y], &|of| {
        of.exposure.kernel_distance.zip(of.mean()).into_iter().collect()
    })
}

fn weights(figure: &Figure) -> Markup {
    scatter(figure, "|α| against error", ["|α|", figure.criterion.metric.name()], &|of| {
        of.exposure.alpha.iter().zip(&of.errors).filter_map(|(alpha, error)| Some((*alpha, (*error)?))).collect()
    })
}

fn driven(figure: &Figure) -> Markup {
    if figure.analyses.iter().all(|of| of.exposure.driven.is_none()) {
        return html! {};
    }
    // Both span orders of magnitude.
    scatter(figure, "|α| against what drove training", ["|α|", "|∫ ∂loss/∂f dt|, logarithm"], &|of| {
        let driven = of.exposure.driven.iter().flatten();
        of.exposure.alpha.iter().zip(driven).map(|(alpha, driven)| (*alpha, driven.max(1e-12).log10())).collect()
    })
}
