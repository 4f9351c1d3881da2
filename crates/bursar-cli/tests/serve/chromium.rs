//! A headless Chromium with one page open, steered over its debugging pipe.

use crate::common::Folder;
use crate::rig::PATIENCE;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

pub(crate) const NAMES: [&str; 5] = ["chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome"];

/// A page in a browser of its own.
pub(crate) struct Page {
    child: Child,
    to: File,
    from: Receiver<Value>,
    session: Option<String>,
    calls: u64,
    /// The errors that the page reported, but for those of the network: a server may be gone.
    pub(crate) wrong: Vec<Value>,
    _folder: Folder,
}

impl Page {
    /// Opens an address and waits until the page shows something.
    pub(crate) fn open(browser: &Path, address: &str) -> Self {
        let mut page = Self::begin(browser, address);
        page.until("document.documentElement.dataset.state === 'ready'");
        page
    }

    /// Opens an address.
    pub(crate) fn begin(browser: &Path, address: &str) -> Self {
        let folder = Folder::new();
        let [to, from] = ["to", "from"].map(|name| {
            let path = folder.path(name);
            mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
            (OpenOptions::new().read(true).write(true).open(&path).expect("a pipe"), path)
        });
        // The browser reads its orders from descriptor 3 and answers on 4.
        let child = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<\"$BURSAR_TO\" 4>\"$BURSAR_FROM\"", "sh"])
            .arg(browser)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic"])
            .args(["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args(["--remote-debugging-pipe", "--window-size=1400,1300"])
            .arg(format!("--user-data-dir={}", folder.path("profile")))
            .env("BURSAR_TO", &to.1)
            .env("BURSAR_FROM", &from.1)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(folder.path("said")).expect("room"))
            .spawn()
            .expect("a shell");
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(from.0).split(0) {
                let Ok(message) = message else { return };
                if sender.send(serde_json::from_slice(&message).expect("JSON")).is_err() {
                    return;
                }
            }
        });
        let (session, wrong) = (None, Vec::new());
        let mut page = Self { child, to: to.0, from: receiver, session, calls: 0, wrong, _folder: folder };
        let target = page.call("Target.createTarget", json!({ "url": "about:blank" }))["targetId"].clone();
        let attached = page.call("Target.attachToTarget", json!({ "targetId": target, "flatten": true }));
        page.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Runtime", "Log", "Page"] {
            page.call(&format!("{domain}.enable"), json!({}));
        }
        page.call("Page.navigate", json!({ "url": address }));
        page.until(&format!(
            "document.readyState === 'complete' && location.href.startsWith({})",
            json!(address.split('#').next())
        ));
        page
    }

    /// Makes a call of the debugging protocol.
    pub(crate) fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.calls += 1;
        let mut message = json!({ "id": self.calls, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).expect("the browser listens");
        loop {
            let answer = self.from.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no answer to {method}"));
            if answer["id"] == self.calls {
                assert_eq!(answer["error"], Value::Null, "{method}");
                return answer["result"].clone();
            }
            let is_error = answer["method"] == "Runtime.exceptionThrown"
                || answer["method"] == "Log.entryAdded"
                    && answer["params"]["entry"]["level"] == "error"
                    && answer["params"]["entry"]["source"] != "network";
            if is_error {
                self.wrong.push(answer["params"].clone());
            }
        }
    }

    /// Returns the value of an expression in the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let parameters = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let result = self.call("Runtime.evaluate", parameters);
        assert_eq!(result["exceptionDetails"], Value::Null, "{expression}");
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true, and returns how long that took.
    pub(crate) fn until(&mut self, expression: &str) -> Duration {
        let began = Instant::now();
        while self.value(expression) != true {
            if began.elapsed() > PATIENCE {
                let text = self.value("document.body.innerText");
                panic!("never: {expression}\n{}\n{:?}", text.as_str().unwrap_or_default(), self.wrong);
            }
            std::thread::sleep(Duration::from_millis(15));
        }
        began.elapsed()
    }

    /// Writes a picture of the page, coded in base 64, if `BURSAR_PICTURES` names a folder.
    pub(crate) fn picture(&mut self, name: &str) {
        if let Some(folder) = std::env::var_os("BURSAR_PICTURES") {
            let picture = self.call("Page.captureScreenshot", json!({ "captureBeyondViewport": true }));
            let coded = picture["data"].as_str().expect("a picture");
            std::fs::write(Path::new(&folder).join(format!("{name}.png.base64")), coded).expect("room");
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _status = self.child.wait();
    }
}
