//! A distillation as a page: Table 1 of Loo et al. (2023), accuracy against size, the sets.

use maud::{Markup, PreEscaped, html};

use super::page::bare_page;
use super::picture;
use super::plot::{self, Axes, Line};
use crate::distill::{Accuracy, DistillPlan, Distilled, Method, Row, Table};

/// One column of the table.
type Column = (&'static str, fn(&Accuracy) -> f64);

const COLUMNS: [Column; 3] = [
    ("standard", |accuracy| accuracy.standard),
    ("linearised", |accuracy| accuracy.linearised),
    ("infinite width", |accuracy| accuracy.infinite),
];

/// The page.
pub fn distillation_page(plan: &DistillPlan, table: &Table, shown: &[Distilled], date: &str) -> String {
    let title = format!("{} records distilled", table.records);
    let content = html! {
        h1 { "Afterimage distillation, " (date) }
        h2 class="title" { (title) }
        p { "Networks learn from few records what they would from " (table.records) ". Accuracy in percent on "
            (table.tested) " records that none of them saw; " (plan.distill.runs) @if plan.distill.runs == 1 { " run." } @else { " runs, mean ± standard deviation." } }
        div class="scroll" { (accuracies(table)) }
        p { small { "Standard: the network, trained by gradient descent from a start of its own. Linearised: its first-order \
            expansion about that start, trained to the end. Infinite width: kernel regression with the neural tangent kernel \
            of " (plan.distill.hidden) " hidden layers." } }
        @if plan.distill.sizes.len() > 1 { (against_size(table)) }
        @for set in shown { (gallery(set)) }
        footer { (crate::tool()) ". A distilled set may show records: treat it as you treat them." }
    };
    bare_page(&title, &content)
}

/// Every method and size of a table, in its order.
fn groups(table: &Table) -> Vec<(Method, usize)> {
    let mut groups: Vec<(Method, usize)> = Vec::new();
    for row in &table.rows {
        if !groups.contains(&(row.method, row.size)) {
            groups.push((row.method, row.size));
        }
    }
    groups
}

fn runs(table: &Table, (method, size): (Method, usize)) -> Vec<&Row> {
    table.rows.iter().filter(|row| (row.method, row.size) == (method, size)).collect()
}

/// Mean and standard deviation, in percent.
fn percents(values: &[f64]) -> (f64, f64) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let square = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    (100.0 * mean, 100.0 * (square / (count - 1.0).max(1.0)).sqrt())
}

fn accuracies(table: &Table) -> Markup {
    html! { table {
        thead { tr { th { "records" } th { "how many" } @for (name, _) in COLUMNS { th { (name) } } th { "seconds" } } }
        tbody { @for group in groups(table) {
            @let rows = runs(table, group);
            tr { th scope="row" { (group.0.name()) } td { (group.1) }
                @for (_, of) in COLUMNS {
                    @let (mean, deviation) = percents(&rows.iter().map(|row| of(&row.accuracy)).collect::<Vec<_>>());
                    td { (format!("{mean:.1}")) @if rows.len() > 1 { small { (format!(" ± {deviation:.1}")) } } }
                }
                td { (format!("{:.0}", rows.iter().map(|row| row.seconds).sum::<f64>() / rows.len().max(1) as f64)) }
            }
        } }
    } }
}

/// What the network learns, against the number of records (figure 8).
fn against_size(table: &Table) -> Markup {
    let mut methods: Vec<Method> = Vec::new();
    for (method, _) in groups(table) {
        if method != Method::Full && !methods.contains(&method) {
            methods.push(method);
        }
    }
    let classes: Vec<String> = (0..methods.len()).map(|index| format!("c{index}")).collect();
    let line = |method: &Method| -> Vec<(f64, f64)> {
        let own = groups(table).into_iter().filter(|(other, _)| other == method);
        own.map(|group| {
            let standard: Vec<f64> = runs(table, group).iter().map(|row| row.accuracy.standard).collect();
            (group.1 as f64, percents(&standard).0)
        })
        .collect()
    };
    let lines: Vec<Line<'_>> =
        (methods.iter().zip(&classes)).map(|(method, class)| Line { name: "", class, points: line(method) }).collect();
    let axes = Axes::new(["records", "% told right by the network"], [false, false]);
    html! {
        h2 { "Against size" }
        ul class="legend" { @for (method, class) in methods.iter().zip(&classes) { li { span class=(class) {} (method.name()) } } }
        (PreEscaped(plot::chart("Accuracy against the number of records", &axes, &lines)))
    }
}

fn gallery(set: &Distilled) -> Markup {
    let shape = set.pixels.shape().get(1..).unwrap_or(&[]).to_vec();
    let (Ok(pixels), Ok(values)) = (set.pixels.to_f64_vec(), set.values.to_f64_vec()) else { return html! {} };
    let (row, outputs) = (set.pixels.row_len().max(1), set.values.row_len().max(1));
    let caption = |values: &[f64]| match values {
        [one] => format!("{one:.2}"),
        several => {
            let largest = (0..several.len()).max_by(|&a, &b| several[a].total_cmp(&several[b])).unwrap_or(0);
            format!("class {largest}")
        }
    };
    let records = pixels.chunks_exact(row).zip(values.chunks_exact(outputs));
    html! {
        h2 { (set.row.method.name()) ", " (set.row.kept) " records" }
        @if let Some(loss) = set.row.loss { p { small { "loss " (super::page::short(loss)) } } }
        ul class="pairs" { @for (pixels, values) in records {
            @if let Some(uri) = picture::brightened(pixels, &shape, 1.0) {
                li { figure { img src=(uri) alt=(format!("a record for {}", caption(values))); figcaption { (caption(values)) } } }
            }
        } }
    }
}
