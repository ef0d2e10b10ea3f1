//! A headless Chromium, driven by chromedriver with the WebDriver protocol. The crates for that protocol bring a TLS stack or a licence that
//! this project does not take; the tests need a handful of its calls.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use serde_json::{Value, json};

/// How long a condition may take to come true.
const PATIENCE: Duration = Duration::from_secs(60);

/// The key of an element in WebDriver's answers, from its specification.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser with one window. It ends with its owner.
pub(crate) struct Browser {
    driver: Child,
    port: u16,
    session: String,
    /// Screenshots are kept here.
    screenshots: PathBuf,
    _profile: tempfile::TempDir,
}

/// Light or dark, as the system of the user has it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Colours {
    Light,
    Dark,
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.try_call("DELETE", "", None);
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

impl Browser {
    /// Starts a browser; `None` if Chromium or its driver is missing.
    pub(crate) fn start(colours: Colours) -> Option<Browser> {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut lines = BufReader::new(driver.stdout.take()?).lines();
        let port = lines.find_map(|line| {
            let line = line.ok()?;
            let (_, port) = line.split_once("started successfully on port ")?;
            port.trim_end_matches('.').parse().ok()
        });
        let port = port.expect("chromedriver names its port");
        // The pipe stays open and empty enough: chromedriver writes no further lines at this log level.
        std::thread::spawn(move || lines.for_each(drop));
        let profile = tempfile::tempdir().unwrap();
        let screenshots = match std::env::var_os("KAI_SCREENSHOTS") {
            Some(directory) => directory.into(),
            None => Path::new(env!("CARGO_TARGET_TMPDIR")).join("screenshots"),
        };
        std::fs::create_dir_all(&screenshots).unwrap();
        let mut browser = Browser {
            driver,
            port,
            session: String::new(),
            screenshots,
            _profile: profile,
        };
        let mut arguments = vec![
            "--headless=new".to_owned(),
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-quic".to_owned(),
            "--no-first-run".to_owned(),
            "--disable-background-networking".to_owned(),
            "--disable-component-update".to_owned(),
            "--disable-sync".to_owned(),
            "--hide-scrollbars".to_owned(),
            "--force-device-scale-factor=1".to_owned(),
            format!("--user-data-dir={}", browser._profile.path().display()),
        ];
        if let Colours::Dark = colours {
            arguments.push("--blink-settings=preferredColorScheme=0".to_owned());
        }
        let capabilities = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": { "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL" },
        } } });
        let answer = browser.call("POST", "", Some(capabilities));
        browser.session = format!("/{}", answer["sessionId"].as_str().expect("a session"));
        browser.size(1280, 800);
        Some(browser)
    }

    /// Sets the size of the window's content.
    pub(crate) fn size(&self, width: u32, height: u32) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        let command = json!({ "cmd": "Emulation.setDeviceMetricsOverride", "params": metrics });
        self.call("POST", "/goog/cdp/execute", Some(command));
    }

    /// Opens an address and waits until it is loaded.
    pub(crate) fn open(&self, address: &str) {
        self.call("POST", "/url", Some(json!({ "url": address })));
    }

    /// The address of the current page.
    pub(crate) fn address(&self) -> String {
        self.call("GET", "/url", None).as_str().unwrap_or_default().to_owned()
    }

    /// Runs a function body in the page and returns its result.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.call("POST", "/execute/sync", Some(json!({ "script": script, "args": [] })))
    }

    /// The text that a reader sees.
    pub(crate) fn text(&self) -> String {
        self.run("return document.body.innerText")
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    /// Waits until an expression of JavaScript is true.
    pub(crate) fn until(&self, expression: &str) {
        self.until_by(|| (), expression);
    }

    /// Repeats an action until an expression of JavaScript is true.
    pub(crate) fn until_by(&self, mut action: impl FnMut(), expression: &str) {
        let began = Instant::now();
        while self.run(&format!("return Boolean({expression})")) != true {
            assert!(
                began.elapsed() < PATIENCE,
                "{expression} stays false on {}:\n{}",
                self.address(),
                self.text()
            );
            action();
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the page shows a text.
    pub(crate) fn until_text(&self, text: &str) {
        self.until(&format!("document.body?.innerText.includes({})", json!(text)));
    }

    /// Clicks on the first element of a CSS selector.
    pub(crate) fn click(&self, selector: &str) {
        let element = self.find(selector);
        self.call("POST", &format!("/element/{element}/click"), Some(json!({})));
    }

    /// Moves the pointer over the first element of a CSS selector.
    pub(crate) fn hover(&self, selector: &str) {
        let origin = json!({ ELEMENT: self.find(selector) });
        let action = json!({ "type": "pointerMove", "duration": 0, "x": 0, "y": 0, "origin": origin });
        let mouse = json!({ "type": "pointer", "id": "mouse", "actions": [action] });
        self.call("POST", "/actions", Some(json!({ "actions": [mouse] })));
    }

    /// Types a text into the first element of a CSS selector.
    pub(crate) fn fill(&self, selector: &str, text: &str) {
        let element = self.find(selector);
        self.call(
            "POST",
            &format!("/element/{element}/value"),
            Some(json!({ "text": text })),
        );
    }

    /// Presses keys, wherever the focus is.
    pub(crate) fn press(&self, keys: &str) {
        let actions: Vec<Value> = keys
            .chars()
            .flat_map(|key| {
                [
                    json!({ "type": "keyDown", "value": key }),
                    json!({ "type": "keyUp", "value": key }),
                ]
            })
            .collect();
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": actions });
        self.call("POST", "/actions", Some(json!({ "actions": [keyboard] })));
    }

    /// Keeps a picture of the window as `NAME.png`, and returns its path.
    pub(crate) fn screenshot(&self, name: &str) -> PathBuf {
        let answer = self.call("GET", "/screenshot", None);
        let png = base64::engine::general_purpose::STANDARD
            .decode(answer.as_str().expect("a picture"))
            .expect("a picture in base64");
        let path = self.screenshots.join(format!("{name}.png"));
        std::fs::write(&path, png).unwrap();
        path
    }

    /// What the browser complained about since the last call: errors of scripts, refused resources.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let entries = self.call("POST", "/se/log", Some(json!({ "type": "browser" })));
        let entries = entries.as_array().cloned().unwrap_or_default();
        let serious = entries
            .iter()
            .filter(|entry| entry["level"] == "SEVERE" || entry["level"] == "WARNING");
        serious.map(|entry| entry["message"].to_string()).collect()
    }

    fn find(&self, selector: &str) -> String {
        let query = json!({ "using": "css selector", "value": selector });
        let found = self.call("POST", "/element", Some(query));
        found[ELEMENT].as_str().expect("an element").to_owned()
    }

    fn call(&self, method: &str, path: &str, body: Option<Value>) -> Value {
        let (status, value) = self.try_call(method, path, body).expect("chromedriver answers");
        assert!(status == 200, "{method} {path}: {value}");
        value
    }

    fn try_call(&self, method: &str, path: &str, body: Option<Value>) -> std::io::Result<(u16, Value)> {
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        write!(
            stream,
            "{method} /session{}{path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n{body}",
            self.session,
            self.port,
            body.len()
        )?;
        let mut reader = BufReader::new(stream);
        let mut status = String::new();
        reader.read_line(&mut status)?;
        let mut length = 0;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            let Some((name, value)) = header.split_once(':') else {
                break;
            };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        let mut answer = vec![0; length];
        reader.read_exact(&mut answer)?;
        let code = status.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        let mut answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        Ok((code, answer["value"].take()))
    }
}
