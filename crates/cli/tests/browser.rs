//! Reports in a real browser: no errors, sorting and filtering, no network.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::browser::Browser;
use common::{afterimage, run};
use serde_json::Value;

const COLUMN: &str =
    "[...document.querySelectorAll('#records tbody tr')].filter(row => !row.hidden).map(row => row.cells";

#[test]
fn reports_sort_filter_and_ask_nobody() {
    let Some(mut browser) = Browser::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let more = ["--set", "data.members=4", "--set", "victim.share_batch_size=false", "--set", "data.controls=40"];
    let (dir, _) = run(folder.path(), "run", &more);
    let page = dir.join("report.html").canonicalize().unwrap();
    browser.open(&page);
    let title = browser.evaluate("document.title");
    assert_eq!(title, "Afterimage: INCONCLUSIVE");
    assert!(browser.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)") == true);
    assert!(browser.evaluate("document.images.length").as_u64().unwrap() >= 8);

    // Sorting by a column, up and down, with the keyboard's own click.
    let scores = format!("{COLUMN}[2].dataset.value).map(Number)");
    let number =
        |values: Value| -> Vec<f64> { values.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect() };
    let click = "(button => { button.focus(); button.click(); return document.activeElement === button; })\
                 (document.querySelectorAll('#records th button')[2])";
    assert_eq!(browser.evaluate(click), true, "headers take the keyboard's focus");
    let up = number(browser.evaluate(&scores));
    assert!(up.len() == 4 && up.is_sorted(), "{up:?}");
    browser.evaluate(click);
    let down = number(browser.evaluate(&scores));
    assert!(down.iter().rev().is_sorted(), "{down:?}");
    assert_eq!(browser.evaluate("document.querySelectorAll('#records th')[2].getAttribute('aria-sort')"), "descending");

    // Filtering by a name.
    let names = format!("{COLUMN}[0].textContent)");
    let all: Vec<String> = serde_json::from_value(browser.evaluate(&names)).unwrap();
    let filter = |words: &str| {
        format!(
            "(input => {{ input.value = '{words}'; input.dispatchEvent(new Event('input')); }})\
             (document.querySelector('[data-filter=records]'))"
        )
    };
    browser.evaluate(&filter(&all[1]));
    let left: Vec<String> = serde_json::from_value(browser.evaluate(&names)).unwrap();
    assert!(left.contains(&all[1]) && left.len() < 4, "{left:?} of {all:?}");
    browser.evaluate(&filter(""));
    assert_eq!(browser.evaluate(&format!("{names}.length")), 4);

    browser.fits_a_phone();
    browser.was_quiet(&page);

    // The public copy and the report over several runs.
    let output = afterimage(&["report", "run", "run", "--out", "both"], folder.path());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for name in ["run/report-public.html", "both/report.html", "both/report-public.html"] {
        let page = folder.path().join(name).canonicalize().unwrap();
        browser.open(&page);
        assert_eq!(browser.evaluate("document.title"), "Afterimage: INCONCLUSIVE", "{name}");
        assert_eq!(browser.evaluate("document.images.length"), 0, "{name}");
        browser.evaluate("document.querySelector('th button').click()");
        browser.was_quiet(&page);
    }
}
