//! Findings in the forms that people and programs ask for.

mod html;
mod picture;
mod plot;

pub use html::{Pictures, Report};

use crate::findings::Findings;
use crate::metrics::Metric;

/// One line for each member: its name, whether it was rebuilt, its scores.
pub fn samples_csv(findings: &Findings) -> String {
    let names: Vec<Metric> = findings.metrics.keys().copied().collect();
    let mut text = String::from("id,recovered");
    names.iter().for_each(|metric| text.extend([",", metric.name()]));
    text.push('\n');
    let criterion = &findings.criterion;
    for (index, id) in findings.sample_ids.iter().enumerate() {
        let score = |metric: Metric| findings.metrics[&metric].members.get(index).copied().flatten();
        let recovered =
            score(criterion.metric).is_some_and(|value| criterion.better.better(value, criterion.threshold));
        text.push_str(&format!("{},{recovered}", quoted(id)));
        for name in &names {
            text.push_str(&score(*name).map_or(",".to_owned(), |value| format!(",{value:e}")));
        }
        text.push('\n');
    }
    text
}

/// A csv field, quoted where it has to be.
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}
