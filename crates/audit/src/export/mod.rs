//! Findings in the forms that people and programs ask for.

mod analysis;
mod arrays;
mod classifier;
mod combined;
mod demo;
mod distillation;
mod figure;
mod html;
mod labels;
mod model_card;
mod nobody;
mod onion;
mod page;
mod picture;
mod plot;
mod policy;
mod recovery;
mod sarif;

pub use arrays::npz;
pub use classifier::{GRID, Plane};
pub use combined::combined_page;
pub use demo::{Shown, demo_page};
pub use distillation::distillation_page;
pub use figure::{FigurePictures, figure_csv, figure_page};
pub use html::{Pictures, Report};
pub use model_card::model_card;
pub use onion::{onion_csv, onion_page};
pub use picture::{contact_sheet, strip};
pub use policy::{policy_csv, policy_page};
pub use recovery::{MaskPicture, Way};
pub use sarif::sarif;

use crate::findings::Findings;
use crate::metrics::Metric;

/// One line for each member: its name, whether it was rebuilt, its scores.
pub fn samples_csv(findings: &Findings) -> String {
    let names: Vec<Metric> = findings.metrics.keys().copied().collect();
    let mut text = String::from("id,recovered");
    names.iter().for_each(|metric| text.extend([",", metric.name()]));
    text.push('\n');
    for (index, id) in findings.sample_ids.iter().enumerate() {
        text.push_str(&format!("{},{}", quoted(id), findings.rebuilt(index)));
        for name in &names {
            text.push_str(&findings.score(*name, index).map_or(",".to_owned(), |value| format!(",{value:e}")));
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
