//! A page in a real browser.
//!
//! Needs Chromium. Without one tests say so and do nothing, unless
//! `AFTERIMAGE_BROWSER=required`, which is how `.ci/run` calls them.
#![allow(dead_code, clippy::unwrap_used, clippy::panic, unreachable_pub)]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// A headless Chromium, spoken to over its debugging pipe.
pub struct Browser {
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
    /// One, or, with a message, none where there is no Chromium and nobody requires it.
    pub fn find() -> Option<Self> {
        let found = Self::start();
        if found.is_none() {
            let required = std::env::var("AFTERIMAGE_BROWSER").is_ok_and(|value| value == "required");
            assert!(!required, "AFTERIMAGE_BROWSER=required, and there is no Chromium");
            eprintln!("skipped: no Chromium here (apt install chromium)");
        }
        found
    }

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
    pub fn call(&mut self, method: &str, params: Value) -> Value {
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
    pub fn open(&mut self, page: &Path) {
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
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let found = self.call("Runtime.evaluate", json!({ "expression": expression, "returnByValue": true }));
        assert!(found["exceptionDetails"].is_null(), "{expression}: {found}");
        found["result"]["value"].clone()
    }

    /// Fails if anything is wider than a phone but what scrolls on its own.
    pub fn fits_a_phone(&mut self) {
        let phone = json!({ "width": 390, "height": 800, "deviceScaleFactor": 2, "mobile": true });
        self.call("Emulation.setDeviceMetricsOverride", phone);
        let wide = self.evaluate("document.documentElement.scrollWidth");
        assert!(wide.as_u64().unwrap() <= 390, "{wide}");
    }

    /// Fails if the page complained, or asked anybody for anything.
    pub fn was_quiet(&mut self, page: &Path) {
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
