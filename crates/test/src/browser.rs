//! A real browser without a screen: Debian's Chromium, told what to do by the WebDriver protocol
//! (<https://www.w3.org/TR/webdriver2/>). Pages are files; keys and clicks are those of a user.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::program::{FILES, Lines, directory, stock};

/// Maximum time for one command.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running browser with one window; ended when dropped.
pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
}

/// Keys that have no character, as the protocol names them.
pub mod key {
    pub const ENTER: &str = "\u{e007}";
    pub const ESCAPE: &str = "\u{e00c}";
    pub const HOME: &str = "\u{e011}";
    pub const LEFT: &str = "\u{e012}";
    pub const RIGHT: &str = "\u{e014}";
    pub const DOWN: &str = "\u{e015}";
    pub const UP: &str = "\u{e013}";
}

impl Browser {
    /// Starts a browser with a fresh profile. Needs the packages chromium and chromium-driver.
    #[track_caller]
    pub fn start(test: &str) -> Self {
        let binary = stock("/usr/bin/chromium", "chromium");
        let mut driver = Command::new(stock("/usr/bin/chromedriver", "chromium-driver"))
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver starts");
        let lines = Lines::of(driver.stdout.take().expect("a pipe"), "chromedriver");
        let port = std::iter::from_fn(|| lines.next()).find_map(|line| {
            let (_, port) = line.split_once("started successfully on port ")?;
            port.trim_end_matches('.').parse().ok()
        });
        let mut browser = Self {
            driver,
            port: port.expect("chromedriver says its port"),
            session: String::new(),
        };
        // The browser must make no requests of its own.
        let profile = directory(&format!("browser-{test}"));
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            &format!("--user-data-dir={}", profile.display()),
        ];
        let options = json!({"binary": binary, "args": arguments});
        let capabilities = json!({"alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"},
        }});
        let session = browser.request("POST", "/session", &json!({ "capabilities": capabilities }));
        let id = session["sessionId"].as_str().expect("a session");
        browser.session = format!("/session/{id}");
        browser
    }

    /// Sends a command of the protocol, and returns its result.
    #[track_caller]
    fn request(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = match method {
            "POST" => body.to_string(),
            _ => String::new(),
        };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            self.port,
            body.len()
        );
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the driver listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        stream
            .write_all((head + &body).as_bytes())
            .expect("the driver reads");
        let (head, body) = answer(&stream);
        assert!(head.contains(" 200 "), "{method} {path}: {head}\n{body}");
        let mut body: Value = serde_json::from_str(&body).expect("JSON");
        body["value"].take()
    }

    #[track_caller]
    fn command(&self, name: &str, body: &Value) -> Value {
        self.request("POST", &format!("{}/{name}", self.session), body)
    }

    /// Sends a command of the browser's protocol for developer tools.
    #[track_caller]
    fn devtools_command(&self, command: &str, parameters: &Value) -> Value {
        self.command("goog/cdp/execute", &json!({"cmd": command, "params": parameters}))
    }

    /// Opens a file, and waits until it is loaded.
    #[track_caller]
    pub fn open(&self, file: &Path) {
        let file = fs::canonicalize(file).expect("a file");
        self.command("url", &json!({"url": format!("file://{}", file.display())}));
    }

    /// Runs a function's body in the page, and returns what it returns.
    #[track_caller]
    pub fn run(&self, script: &str) -> Value {
        self.command("execute/sync", &json!({"script": script, "args": []}))
    }

    /// Sets the size of the window, and the user's preference for dark or light.
    #[track_caller]
    pub fn appear(&self, [width, height]: [u32; 2], dark: bool) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500});
        self.devtools_command("Emulation.setDeviceMetricsOverride", &size);
        let scheme = json!({"name": "prefers-color-scheme", "value": if dark { "dark" } else { "light" }});
        self.devtools_command(
            "Emulation.setEmulatedMedia",
            &json!({"media": "", "features": [scheme]}),
        );
    }

    /// Presses keys one after another, each a character or one of [`key`].
    #[track_caller]
    pub fn press(&self, keys: &[&str]) {
        let actions = keys.iter().flat_map(|key| {
            let action = |kind: &str| json!({"type": kind, "value": key});
            [action("keyDown"), action("keyUp")]
        });
        let actions: Vec<_> = actions.collect();
        let source = json!({"type": "key", "id": "keyboard", "actions": actions});
        self.command("actions", &json!({"actions": [source]}));
    }

    /// Clicks at a point of the window.
    #[track_caller]
    pub fn click(&self, x: f64, y: f64) {
        let actions = json!([
            {"type": "pointerMove", "duration": 0, "x": x.round(), "y": y.round(), "origin": "viewport"},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerUp", "button": 0},
        ]);
        let source = json!({"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": actions});
        self.command("actions", &json!({"actions": [source]}));
    }

    /// Clicks in the middle of the element that a selector finds.
    #[track_caller]
    pub fn click_on(&self, selector: &str) {
        let place = self.run(&format!(
            "const element = document.querySelector({selector:?}); element.scrollIntoView({{block: 'center'}}); \
             const box = element.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]"
        ));
        let at = |index: usize| place[index].as_f64().expect("a place");
        self.click(at(0), at(1));
    }

    /// Returns the text of the element that a selector finds, as it is rendered.
    #[track_caller]
    pub fn text(&self, selector: &str) -> String {
        let text = self.run(&format!("return document.querySelector({selector:?}).innerText"));
        text.as_str().expect("text").to_owned()
    }

    /// Takes the messages that went to the console since the last call: errors of the page, and violations of
    /// its policy.
    #[track_caller]
    pub fn console(&self) -> Vec<String> {
        let entries = self.command("se/log", &json!({"type": "browser"}));
        let entries = entries.as_array().expect("a list").iter();
        entries
            .map(|entry| format!("{}: {}", entry["level"], entry["message"]))
            .collect()
    }

    /// Returns URLs of all that the page has loaded besides itself.
    #[track_caller]
    pub fn requests(&self) -> Vec<String> {
        let requests = self.run("return performance.getEntriesByType('resource').map((entry) => entry.name)");
        serde_json::from_value(requests).expect("names")
    }

    /// Returns role and name of each control of the page, as a screen reader has them.
    #[track_caller]
    pub fn controls(&self) -> Vec<(String, String)> {
        let tree = self.devtools_command("Accessibility.getFullAXTree", &json!({}));
        let nodes = tree["nodes"].as_array().expect("a list").iter();
        let roles = [
            "button",
            "checkbox",
            "combobox",
            "radio",
            "searchbox",
            "slider",
            "tab",
            "tree",
        ];
        nodes
            .map(|node| {
                [&node["role"]["value"], &node["name"]["value"]].map(|value| value.as_str().unwrap_or(""))
            })
            .filter(|[role, _]| roles.contains(role))
            .map(|[role, name]| (role.to_owned(), name.to_owned()))
            .collect()
    }

    /// Saves a picture of the window below the directory for tests' files. Checks that it has the window's
    /// size and shows more than a background.
    #[track_caller]
    pub fn screenshot(&self, name: &str) -> PathBuf {
        let picture = self.request("GET", &format!("{}/screenshot", self.session), &Value::Null);
        let picture = BASE64_STANDARD.decode(picture.as_str().expect("text"));
        let directory = Path::new(FILES).join("screenshots");
        fs::create_dir_all(&directory).expect("a directory");
        let path = directory.join(format!("{name}.png"));
        fs::write(&path, picture.expect("a picture")).expect("a file");
        self.check_picture(&path);
        path
    }

    /// Checks a picture by having the browser decode it.
    #[track_caller]
    fn check_picture(&self, path: &Path) {
        let picture = BASE64_STANDARD.encode(fs::read(path).expect("a picture"));
        let read = self.run(&format!("const picture = '{picture}'; {READ_PICTURE}"));
        let (width, height, colours, background): (u64, u64, u64, f64) =
            serde_json::from_value(read).expect("numbers");
        let window = self.run("return [window.innerWidth, window.innerHeight]");
        assert_eq!(json!([width, height]), window, "{}", path.display());
        assert!(
            colours >= 16 && background < 0.97,
            "{}: {colours} colours, {background} of it one",
            path.display()
        );
    }
}

/// Script that returns width, height, number of colours, and the share of the most frequent colour.
const READ_PICTURE: &str = "return (async () => {
    const bytes = Uint8Array.from(atob(picture), (character) => character.charCodeAt(0));
    const bitmap = await createImageBitmap(new Blob([bytes], { type: 'image/png' }));
    const { width, height } = bitmap;
    const context = new OffscreenCanvas(width, height).getContext('2d');
    context.drawImage(bitmap, 0, 0);
    const counts = new Map();
    for (const pixel of new Uint32Array(context.getImageData(0, 0, width, height).data.buffer)) {
        counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
    }
    return [width, height, counts.size, Math.max(...counts.values()) / (width * height)];
})()";

/// Reads head and body of an answer, by its length: the driver does not close the connection behind it.
#[track_caller]
fn answer(stream: &TcpStream) -> (String, String) {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let start = head.len();
        reader.read_line(&mut head).expect("an answer in time");
        let line = head[start..].trim().to_ascii_lowercase();
        if let Some(number) = line.strip_prefix("content-length:") {
            length = number.trim().parse().expect("a length");
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("the whole answer in time");
    (head, String::from_utf8(body).expect("text"))
}

impl Drop for Browser {
    /// Deletes the session, with which the driver ends its browser.
    fn drop(&mut self) {
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) {
            let head = format!("DELETE {} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", self.session);
            let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
            let _ = stream.write_all(head.as_bytes());
            // It answers when the browser has ended.
            let _ = stream.read(&mut [0; 64]);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
