//! A headless Chromium that opens one page and runs a script in it.

use crate::common::Folder;
use serde_json::Value;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[derive(Clone, Debug)]
pub(crate) struct Browser(PathBuf);

const NAMES: [&str; 5] = ["chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome"];
const PATIENCE: Duration = Duration::from_secs(120);

/// A script that records errors, put before everything else of the page.
const LISTEN: &str = r#"<script>
window.wrong = [];
for (const kind of ["error", "unhandledrejection", "securitypolicyviolation"])
  addEventListener(kind, (event) => wrong.push(`${kind}: ${event.message ?? event.reason ?? event.blockedURI}`), true);
for (const kind of ["error", "warn"]) console[kind] = (...said) => wrong.push(`console.${kind}: ${said}`);
</script>"#;

impl Browser {
    pub(crate) fn find() -> Option<Self> {
        if let Some(named) = std::env::var_os("BURSAR_CHROMIUM") {
            return Some(Self(named.into()));
        }
        let folders: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH")?).collect();
        let places = NAMES.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
        places.into_iter().find(|place| place.is_file()).map(Self)
    }

    /// Opens the page at `path`, followed by `fragment`, waits until it is drawn and returns what `script` returns. Fails if
    /// the page reports an error, requests something or cannot be drawn.
    pub(crate) fn ask(&self, path: &str, fragment: &str, script: &str) -> Value {
        let folder = Folder::new();
        let page = std::fs::read_to_string(path).expect("the page was written");
        let probe = format!(
            r#"<script>(async () => {{
              const result = {{}};
              while (!document.documentElement.dataset.state) await new Promise((go) => setTimeout(go, 10));
              const press = (element, key, more) =>
                element.dispatchEvent(new KeyboardEvent("keydown", {{ key, bubbles: true, cancelable: true, ...more }}));
              try {{ result.found = await (async () => {{ {script} }})(); }} catch (error) {{ wrong.push(String(error)); }}
              result.state = document.documentElement.dataset.state;
              result.wrong = wrong;
              const found = document.createElement("template");
              found.id = "found";
              found.setAttribute("data-result", encodeURIComponent(JSON.stringify(result)));
              document.body.append(found);
            }})()</script>"#
        );
        let (before, after) = page.rsplit_once("</body>").expect("a page has a body");
        let before = before.replacen("<head>", &format!("<head>{LISTEN}"), 1);
        let opened = folder.file("page.html", format!("{before}{probe}</body>{after}"));
        let result = result_in(&self.dump(&folder, &format!("file://{opened}{fragment}")));
        assert_eq!((&result["state"], &result["wrong"]), (&"ready".into(), &Value::Array(Vec::new())), "{result}");
        result["found"].clone()
    }

    /// Returns the document after its scripts have run.
    fn dump(&self, folder: &Folder, address: &str) -> String {
        let [document, said] = ["document", "said"].map(|name| folder.path(name));
        let mut child = Command::new(&self.0)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic"])
            .args(["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .arg(format!("--user-data-dir={}", folder.path("profile")))
            .args(["--window-size=1200,1400", "--virtual-time-budget=20000", "--dump-dom", address])
            .stdin(Stdio::null())
            .stdout(File::create(&document).expect("room"))
            .stderr(File::create(&said).expect("room"))
            .spawn()
            .expect("the browser starts");
        let started = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().expect("it is a child of ours") {
                break Some(status);
            }
            if started.elapsed() > PATIENCE {
                let _ended_already = child.kill();
                let _status = child.wait();
                break None;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let read = |path| String::from_utf8_lossy(&std::fs::read(path).expect("just written")).into_owned();
        assert!(status.is_some_and(|status| status.success()), "{status:?} after {PATIENCE:?}: {}", read(&said));
        read(&document)
    }
}

/// Returns what the probe left in the document.
fn result_in(document: &str) -> Value {
    let (_, after) = document.split_once("data-result=\"").unwrap_or_else(|| panic!("no result in {document:.2000}"));
    let coded = after.split('"').next().unwrap_or_default();
    let bytes: Vec<u8> = {
        let mut bytes = Vec::new();
        let mut rest = coded.as_bytes();
        while let [first, after @ ..] = rest {
            rest = after;
            bytes.push(match (first, after) {
                (b'%', [high, low, after @ ..]) => {
                    rest = after;
                    let digits = [*high, *low];
                    let digits = std::str::from_utf8(&digits).expect("hexadecimal digits");
                    u8::from_str_radix(digits, 16).expect("hexadecimal digits")
                }
                _ => *first,
            });
        }
        bytes
    };
    serde_json::from_slice(&bytes).expect("JSON")
}
