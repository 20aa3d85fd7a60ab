//! Reports in a real browser: no errors, sorting and filtering, no network.
//!
//! Needs Chromium. Without one the test says so and does nothing, unless
//! `AFTERIMAGE_BROWSER=required`, which is how `.ci/run` calls it.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use common::{afterimage, run};
use serde_json::{Value, json};

/// A headless Chromium, spoken to over its debugging pipe.
struct Browser {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: Option<String>,
    calls: u64,
    /// What the page reported on its own: errors, requests.
    events: Vec<Value>,
    _profile: tempfile::TempDir,
}

impl Browser {
    fn start() -> Option<Self> {
        let found = |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|out| out.status.success());
        let program = ["chromium", "chromium-browser", "google-chrome"].iter().find(|name| found(name))?;
        let profile = tempfile::tempdir().unwrap();
        // The debugging pipe is on descriptors 3 and 4: the shell lends them our ends of standard input and output.
        let flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-component-update \
                     --disable-background-networking --disable-sync --remote-debugging-pipe";
        let command = format!("exec {program} {flags} --user-data-dir=\"$0\" 3<&0 4>&1 >&2");
        let mut process = Command::new("sh")
            .args(["-c", &command])
            .arg(profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (to, from) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        Some(Self { process, to, from, session: None, calls: 0, events: Vec::new(), _profile: profile })
    }

    /// Calls a method of the debugging protocol; messages end with a zero byte.
    fn call(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let mut message = json!({ "id": self.calls, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = Value::from(session.as_str());
        }
        self.to.write_all(message.to_string().as_bytes()).unwrap();
        self.to.write_all(&[0]).unwrap();
        self.to.flush().unwrap();
        loop {
            let answer = self.next();
            if answer["id"] == self.calls {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            self.events.push(answer);
        }
    }

    fn next(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.from.read_until(0, &mut bytes).unwrap();
        assert_eq!(bytes.pop(), Some(0), "the browser went away");
        serde_json::from_slice(&bytes).unwrap()
    }

    /// Opens a file in a new tab and waits until it is loaded.
    fn open(&mut self, page: &Path) {
        self.session = None;
        let target = self.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = self.call("Target.attachToTarget", attach)["sessionId"].as_str().unwrap().to_owned();
        self.session = Some(session);
        for domain in ["Runtime", "Log", "Network", "Page"] {
            self.call(&format!("{domain}.enable"), json!({}));
        }
        self.events.clear();
        self.call("Page.navigate", json!({ "url": format!("file://{}", page.display()) }));
        while !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
            let event = self.next();
            self.events.push(event);
        }
    }

    /// The value of an expression in the page.
    fn evaluate(&mut self, expression: &str) -> Value {
        let found = self.call("Runtime.evaluate", json!({ "expression": expression, "returnByValue": true }));
        assert!(found["exceptionDetails"].is_null(), "{expression}: {found}");
        found["result"]["value"].clone()
    }

    /// Fails if the page complained, or asked anybody for anything.
    fn was_quiet(&mut self, page: &Path) {
        let mut requests = 0;
        for event in &self.events {
            let method = event["method"].as_str().unwrap_or_default();
            assert!(method != "Runtime.exceptionThrown" && method != "Log.entryAdded", "{event}");
            assert!(method != "Runtime.consoleAPICalled", "{event}");
            if method == "Network.requestWillBeSent" {
                let url = event["params"]["request"]["url"].as_str().unwrap();
                let own = url == format!("file://{}", page.display());
                requests += 1;
                assert!(own || url.starts_with("data:image/png;base64,"), "the page asked for {url}");
            }
        }
        assert!(requests > 0, "not even the page itself was seen being asked for");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const COLUMN: &str =
    "[...document.querySelectorAll('#records tbody tr')].filter(row => !row.hidden).map(row => row.cells";

#[test]
fn reports_sort_filter_and_ask_nobody() {
    let Some(mut browser) = Browser::start() else {
        let required = std::env::var("AFTERIMAGE_BROWSER").is_ok_and(|value| value == "required");
        assert!(!required, "AFTERIMAGE_BROWSER=required, and there is no Chromium");
        eprintln!("skipped: no Chromium here (apt install chromium)");
        return;
    };
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

    // Nothing is wider than a phone but what scrolls on its own.
    browser.call(
        "Emulation.setDeviceMetricsOverride",
        json!({ "width": 390, "height": 800, "deviceScaleFactor": 2, "mobile": true }),
    );
    let wide = browser.evaluate("document.documentElement.scrollWidth");
    assert!(wide.as_u64().unwrap() <= 390, "{wide}");
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
