//! A figure as a page.

use std::fmt::Write;

use maud::{Markup, PreEscaped, html};
use serde::{Deserialize, Serialize};

use super::page::{bare_page, short};
use super::plot::{self, Axes, Line, Mark};
use super::recovery::{self, MaskPicture};
use super::{picture, quoted};
use crate::figure::{Curve, Figure, Point, Scale, Show};
use crate::findings::Also;
use crate::metrics::Direction;
use crate::run_dir::RunDir;
use crate::{Criterion, Result};

/// The members of a cell and what came back of each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FigurePictures {
    /// Shape of a record.
    pub shape: Vec<usize>,
    /// The members.
    pub members: Vec<Vec<f64>>,
    /// The candidate nearest to each; empty where there is none.
    pub rebuilt: Vec<Vec<f64>>,
}

impl FigurePictures {
    fn file(curve: usize, point: usize) -> String {
        format!("pictures-{curve}-{point}.json")
    }

    /// Whether those of a cell are there.
    pub fn exist(dir: &RunDir, curve: usize, point: usize) -> bool {
        dir.has(&Self::file(curve, point))
    }

    /// Keeps them.
    pub fn write(&self, dir: &RunDir, curve: usize, point: usize) -> Result<()> {
        dir.write_json(&Self::file(curve, point), self)
    }

    /// Those of all cells, by curve and then by point.
    pub fn read(dir: &RunDir, curves: usize, points: usize) -> Result<Vec<Vec<Self>>> {
        let row = |curve| (0..points).map(|point| dir.read_json(&Self::file(curve, point))).collect();
        (0..curves).map(row).collect()
    }
}

/// The page; `pictures` by curve and then by point, or none; the masks that records were damaged by.
pub fn figure_page(figure: &Figure, date: &str, pictures: &[Vec<FigurePictures>], masks: &[MaskPicture]) -> String {
    let content = html! {
        h1 { "Afterimage figure, " (date) }
        h2 class="title" { (figure.title) }
        @if !figure.caption.is_empty() { p { (figure.caption) } }
        @if figure.curves.iter().any(|curve| curve.points.len() > 1) {
            (legend(figure))
            @for drawn in drawn(figure) {
                @if let Some(title) = &drawn.title { h3 { (title) } }
                (PreEscaped(chart(figure, &drawn)))
            }
        }
        (recovery::masks(masks))
        @for (curve, row) in figure.curves.iter().zip(pictures) { (gallery(figure, curve, row)) }
        (super::analysis::analyses(figure))
        h2 { "Numbers" }
        @if figure.show == Show::Labels { p { "Share of the batch's labels that were told rightly, in any order; mean of " (runs(figure)) ". Below, what guessing gives." } }
        @else if figure.show == Show::Recovered { p { "Share of members that pass, with their nearest candidate " (line(figure)) "; mean of " (runs(figure)) ". Below, the same for test controls, which were damaged and attacked likewise." @if other_lines(figure).next().is_some() { " Then what passes other lines." } } }
        @else if figure.show == Show::Identified { p { "Share of members whose candidate points to them among all members and test controls; mean of " (runs(figure)) ". Below, the same for controls. A record passes if its nearest candidate is " (line(figure)) "." } }
        @else { p { (statistic(figure)) " of the members' " (figure.criterion.metric) ", one candidate for each; mean of " (runs(figure)) ". Below, what as many test controls give by the same rule, which is chance. A record passes if its nearest candidate is " (line(figure)) ". The slope is that of a straight line through the logarithms of both." } }
        div class="scroll" { (table(figure)) }
        (obstacles(figure))
        footer { (crate::tool()) ". Seeds count up from the plan's own." }
    };
    bare_page(&figure.title, &content)
}

fn statistic(figure: &Figure) -> &'static str {
    match figure.criterion.metric.better() {
        Direction::Below => "Root mean square",
        Direction::Above => "Mean",
    }
}

/// The criterion in words.
fn line(figure: &Figure) -> String {
    let Criterion { metric, threshold } = figure.criterion;
    let side = if metric.better() == Direction::Below { "below" } else { "above" };
    match threshold {
        Some(threshold) => format!("{side} {}", short(threshold)),
        None => format!("{side} what 99 of 100 calibration controls reach"),
    }
}

pub(super) fn class(index: usize) -> String {
    format!("c{}", index % 6)
}

fn legend(figure: &Figure) -> Markup {
    html! { ul class="legend" {
        @for (index, curve) in figure.curves.iter().enumerate() { li { span class=(class(index)) {} (curve.name) } }
        li { span class="chance" {} @if figure.show == Show::Labels { "guessing" } @else { "controls (chance)" } }
    } }
}

/// How many runs a point has.
fn runs(figure: &Figure) -> String {
    match figure.curves.iter().flat_map(|curve| &curve.points).map(|point| point.seeds).max() {
        None | Some(1) => "1 run".into(),
        Some(most) if figure.curves.iter().flat_map(|curve| &curve.points).all(|point| point.seeds == most) => {
            format!("{most} runs (smallest to largest; 95 % interval of the mean)")
        }
        Some(_) => "several runs (smallest to largest; 95 % interval of the mean)".into(),
    }
}

/// One value of every point, and what controls give of it.
struct Drawn {
    title: Option<String>,
    y: String,
    value: Value,
    control: Value,
}

type Value = Box<dyn Fn(&Point) -> Option<f64>>;

/// Other lines that were counted.
fn other_lines(figure: &Figure) -> impl Iterator<Item = f64> + '_ {
    let first = figure.curves.iter().flat_map(|curve| &curve.points).find(|point| !point.also.is_empty());
    first.into_iter().flat_map(|point| point.also.iter().map(|also| also.threshold))
}

/// The charts of a figure: of shares that pass, one for each line, and one of decibels.
fn drawn(figure: &Figure) -> Vec<Drawn> {
    let metric = figure.criterion.metric;
    let better = if metric.better() == Direction::Below { "smaller" } else { "larger" };
    let y = match figure.show {
        Show::Labels => "share of labels that are right".to_owned(),
        Show::Identified => "share of members that are pointed to".to_owned(),
        Show::Recovered => "share of members rebuilt".to_owned(),
        Show::Curves | Show::Pictures => format!("{metric} ({better} is more alike)"),
    };
    let share = |count: usize, all: usize| (all > 0).then(|| count as f64 / all as f64);
    let mut charts =
        vec![Drawn { title: None, y, value: Box::new(|point| point.mean), control: Box::new(|point| point.control) }];
    if figure.show != Show::Recovered {
        return charts;
    }
    charts[0].title = Some(format!("{metric} {}", line(figure)));
    let side = if metric.better() == Direction::Below { "below" } else { "above" };
    // Runs without a value count nowhere.
    let counted = |all: usize, point: &Point| all * point.runs / point.seeds.max(1);
    for threshold in other_lines(figure) {
        let of = move |point: &Point| point.also.iter().find(|also| also.threshold == threshold).copied();
        charts.push(Drawn {
            title: Some(format!("{metric} {side} {}", short(threshold))),
            y: "share of members rebuilt".into(),
            value: Box::new(move |point| share(of(point)?.recovered, counted(point.members, point))),
            control: Box::new(move |point| share(of(point)?.control_recovered, counted(point.controls, point))),
        });
    }
    if figure.curves.iter().flat_map(|curve| &curve.points).any(|point| point.psnr.is_some()) {
        let (value, control) = (Box::new(|point: &Point| point.psnr), Box::new(|_: &Point| None));
        charts.push(Drawn { title: Some("Mean over all members".into()), y: "PSNR, dB".into(), value, control });
    }
    charts
}

fn chart(figure: &Figure, drawn: &Drawn) -> String {
    let every = || figure.curves.iter().flat_map(|curve| &curve.points);
    let log_x = every().all(|point| point.x > 0.0 && point.name.is_none());
    let values = || every().flat_map(|point| [(drawn.value)(point), (drawn.control)(point)]).flatten();
    let shares = figure.show == Show::Recovered;
    let log_y = figure.scale == Scale::Logarithmic && !shares && values().all(|value| value > 0.0);
    let place = |value: f64, log: bool| if log { value.log10() } else { value };
    // Between names there is nothing to join; beside each other, dots of one height are all seen.
    let named = every().any(|point| point.name.is_some());
    let aside = |index: usize| {
        let middle = (figure.curves.len() as f64 - 1.0) / 2.0;
        if named { 0.09 * (index as f64 - middle) } else { 0.0 }
    };
    let points = |curve: &Curve, aside: f64, value: &dyn Fn(&Point) -> Option<f64>| -> Vec<(f64, f64)> {
        let at = |point: &Point| Some((place(point.x, log_x) + aside, place(value(point)?, log_y)));
        curve.points.iter().filter_map(at).collect()
    };
    let classes: Vec<String> = (0..figure.curves.len()).map(class).collect();
    let mut lines: Vec<Line<'_>> = (figure.curves.iter().zip(&classes).enumerate())
        .map(|(index, (curve, class))| Line { name: "", class, points: points(curve, aside(index), &drawn.value) })
        .collect();
    let has_control = |curve: &&Curve| curve.points.iter().any(|point| (drawn.control)(point).is_some());
    if let Some(first) = figure.curves.iter().find(has_control) {
        lines.push(Line { name: "", class: "chance", points: points(first, 0.0, &drawn.control) });
    }
    let mut places: Vec<(f64, String)> = every().map(|point| (place(point.x, log_x), at(point))).collect();
    places.sort_by(|a, b| a.0.total_cmp(&b.0));
    places.dedup();
    let marks = if named { Mark::Dots } else { Mark::Joined };
    let axes = Axes { places: &places, points: marks, ..Axes::new([&figure.x, &drawn.y], [log_x, log_y]) };
    plot::chart(drawn.title.as_ref().unwrap_or(&figure.title), &axes, &lines)
}

/// What stands at a point of the axis.
fn at(point: &Point) -> String {
    if point.name.is_some() { point.at() } else { number(point.x) }
}

pub(super) fn number(x: f64) -> String {
    if x == x.round() && x.abs() < 1e6 { format!("{x:.0}") } else { short(x) }
}

fn table(figure: &Figure) -> Markup {
    let Some(first) = figure.curves.first() else { return html! {} };
    html! {
        table {
            thead { tr { th { (figure.x) } @for point in &first.points { th { (at(point)) } } th { "slope" } } }
            tbody { @for curve in &figure.curves {
                tr { th scope="row" { (curve.name) } @for point in &curve.points { td {
                    @match (point.mean, point.low, point.high) {
                        (Some(mean), Some(low), Some(high)) => { (short(mean)) @if point.seeds > 1 { br; small { (short(low)) " – " (short(high)) @if let Some([low, high]) = point.interval { "; " (short(low)) " – " (short(high)) } @if point.runs < point.seeds { ", " (point.runs) " of " (point.seeds) " runs" } } } },
                        _ => "–",
                    }
                } } td { (curve.slope.map_or("–".into(), |slope| format!("{slope:.2}"))) } }
                tr class="soft" { td { @if figure.show == Show::Labels { "guessing" br; "labels right" } @else { "controls" br; "members passed, controls passed" } br; "seconds" } @for point in &curve.points { td { (point.control.map_or("–".into(), short)) br; (point.recovered) " of " (point.members) @if figure.show != Show::Labels { ", " (point.control_recovered) " of " (point.controls) } br; (format!("{:.2}", point.seconds)) } } td {} }
                @if figure.show == Show::Recovered { @for threshold in other_lines(figure) {
                    tr class="soft" { td { "members, controls at " (short(threshold)) } @for point in &curve.points { td { @match point.also.iter().find(|also| also.threshold == threshold) { Some(also) => { (also.recovered) " of " (point.members) ", " (also.control_recovered) " of " (point.controls) }, None => "–" } } } td {} }
                } }
                @if figure.show == Show::Recovered && curve.points.iter().any(|point| point.psnr.is_some()) { tr class="soft" { td { "PSNR, mean" } @for point in &curve.points { td { (point.psnr.map_or("–".into(), |psnr| format!("{psnr:.1}"))) } } td {} } }
                @if curve.points.iter().any(|point| point.halves.is_some()) { tr class="soft" { td { "members with smaller gradients" br; "with larger ones" } @for point in &curve.points { td { @match point.halves { Some([smaller, larger]) => { (short(smaller)) br; (short(larger)) }, None => "–" } } } td {} } }
            } }
        }
    }
}

fn obstacles(figure: &Figure) -> Markup {
    let all = figure.curves.iter().flat_map(|curve| curve.points.iter().map(move |point| (curve, point)));
    let some: Vec<(&Curve, &Point)> = all.filter(|(_, point)| !point.obstacles.is_empty()).collect();
    html! { @if !some.is_empty() {
        h2 { "Runs without a value" }
        ul { @for (curve, point) in some { li { (curve.name) ", " (at(point)) ": " (point.obstacles.join("; ")) } } }
    } }
}

/// A row of pictures for each member: the original, then what came back at each point.
fn gallery(figure: &Figure, curve: &Curve, row: &[FigurePictures]) -> Markup {
    let Some(first) = row.first() else { return html! {} };
    let image = |pixels: &[f64], shape: &[usize], scale: f64, what: String| {
        html! { @match picture::brightened(pixels, shape, scale) {
            Some(uri) => img src=(uri) alt=(what);,
            None => span class="none" { "–" },
        } }
    };
    html! {
        h2 { (curve.name) }
        p { "Originals, and the candidate nearest to each" @if first.members.iter().any(|member| picture::brightness(member) > 1.0) { ", both brightened alike" } ":" }
        div class="scroll" { table class="gallery" {
            thead { tr { th { "original" } @for point in &curve.points { th { (figure.x) " " (at(point)) } } } }
            tbody { @for member in 0..first.members.len() {
                @let scale = picture::brightness(&first.members[member]);
                tr {
                    td { (image(&first.members[member], &first.shape, scale, format!("member {}, original", member + 1))) }
                    @for (cell, point) in row.iter().zip(&curve.points) { td {
                        // A point may have members of its own.
                        @if let Some(own) = cell.members.get(member).filter(|own| **own != first.members[member]) {
                            (image(own, &cell.shape, picture::brightness(own), format!("member {} at {}, original", member + 1, number(point.x))))
                        }
                        (image(cell.rebuilt.get(member).map_or(&[][..], Vec::as_slice), &cell.shape, cell.members.get(member).map_or(scale, |own| picture::brightness(own)), format!("member {} at {}, rebuilt", member + 1, number(point.x))))
                    } }
                }
            } }
        } }
    }
}

/// One line for each curve and point.
pub fn figure_csv(figure: &Figure) -> String {
    let mut text = String::from(
        "curve,x,runs,mean,low,high,control,recovered,members,control_recovered,controls,seconds,smaller_gradients,larger_gradients",
    );
    let others: Vec<f64> = other_lines(figure).collect();
    for line in &others {
        let _ = write!(text, ",recovered_at_{line:e},control_recovered_at_{line:e}");
    }
    text.push_str(",psnr\n");
    let field = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:e}"));
    for curve in &figure.curves {
        for point in &curve.points {
            let Point { x, runs, mean, low, high, control, recovered, members, .. } = point;
            let Point { control_recovered, controls, seconds, .. } = point;
            let _ = write!(
                text,
                "{},{x},{runs},{},{},{},{},{recovered},{members},{control_recovered},{controls},{seconds:.3},{},{}",
                quoted(&curve.name),
                field(*mean),
                field(*low),
                field(*high),
                field(*control),
                field(point.halves.map(|halves| halves[0])),
                field(point.halves.map(|halves| halves[1]))
            );
            for line in &others {
                let also = point.also.iter().find(|also| also.threshold == *line);
                let count = |of: &dyn Fn(&Also) -> usize| also.map_or(String::new(), |also| of(also).to_string());
                let _ = write!(text, ",{},{}", count(&|also| also.recovered), count(&|also| also.control_recovered));
            }
            let _ = writeln!(text, ",{}", field(point.psnr));
        }
    }
    text
}
