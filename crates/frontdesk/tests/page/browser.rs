//! Debian's Chromium, and what a person does with it.

#![allow(dead_code)] // Not all that use this module do everything.

use crate::served::{PASSWORD, Served};
use fantoccini::elements::Element;
use fantoccini::key::Key;
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Generous: a browser on a busy machine is slow.
const PATIENCE: Duration = Duration::from_secs(300);

/// The program that drives the browser; ended with the value, and the browser with it.
pub(crate) struct Driver {
    process: Child,
    address: String,
    /// Where the browsers' profiles are, which they leave behind.
    _folder: TempDir,
}

impl Driver {
    /// None if it is not installed.
    pub(crate) fn start() -> Option<Driver> {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("chromedriver");
        let started = command.arg("--port=0").env("TMPDIR", folder.path()).stdout(Stdio::piped()).spawn();
        let mut process = started.ok()?;
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut ports = lines.map_while(Result::ok).filter_map(|line| {
            let (_, port) = line.split_once("started successfully on port ")?;
            Some(port.trim_end_matches('.').to_owned())
        });
        let port = ports.next().expect("chromedriver says where it listens");
        Some(Driver { process, address: format!("http://127.0.0.1:{port}"), _folder: folder })
    }

    pub(crate) async fn browser(&self, of_chrome: serde_json::Value) -> Browser {
        let mut options = serde_json::json!({
            "binary": "/usr/bin/chromium",
            "args": ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1000,1000"],
        });
        options.as_object_mut().unwrap().extend(of_chrome.as_object().unwrap().clone());
        // The certificate is nobody's but the server's own.
        let wanted = serde_json::json!({ "acceptInsecureCerts": true, "goog:chromeOptions": options });
        let builder = ClientBuilder::new(HttpConnector::new())
            .capabilities(wanted.as_object().unwrap().clone())
            .connect(&self.address)
            .await;
        Browser(builder.expect("chromedriver starts chromium"))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // It ends its browsers, as it cannot when it is killed.
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.process.wait().unwrap();
    }
}

/// A browser, and what a person does with it.
pub(crate) struct Browser(pub(crate) Client);

impl Browser {
    pub(crate) async fn log_in<D>(&self, served: &Served<D>) {
        self.0.goto(&format!("https://{}/", served.address)).await.unwrap();
        self.shown("#login").await;
        self.find("#password").await.send_keys("a wrong one").await.unwrap();
        self.click("#login button").await;
        self.says("#notice", "the password is wrong").await;
        let password = self.find("#password").await;
        password.clear().await.unwrap();
        // Enter does what the button does.
        password.send_keys(&format!("{PASSWORD}{}", char::from(Key::Enter))).await.unwrap();
        self.shown("#targets button").await;
    }

    pub(crate) async fn find(&self, selector: &str) -> Element {
        self.0.find(Locator::Css(selector)).await.unwrap_or_else(|error| panic!("{selector}: {error}"))
    }

    pub(crate) async fn is_shown(&self, selector: &str) -> bool {
        match self.0.find(Locator::Css(selector)).await {
            Ok(element) => element.is_displayed().await.unwrap_or(false),
            Err(_) => false,
        }
    }

    pub(crate) async fn shown(&self, selector: &str) {
        until(selector, async || self.is_shown(selector).await).await;
    }

    pub(crate) async fn gone(&self, selector: &str) {
        until(&format!("no {selector}"), async || !self.is_shown(selector).await).await;
    }

    /// Waits until an element has a text.
    pub(crate) async fn says(&self, selector: &str, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let said = match self.0.find(Locator::Css(selector)).await {
                Ok(element) => element.text().await,
                Err(error) => Err(error),
            };
            if said.as_ref().is_ok_and(|said| said.contains(text)) {
                return;
            }
            assert!(Instant::now() < deadline, "{selector} does not say {text:?}: {said:?}");
        }
    }

    /// Clicks at an element; once more if it was drawn anew in between.
    pub(crate) async fn click(&self, selector: &str) {
        until(selector, async || match self.0.find(Locator::Css(selector)).await {
            Ok(element) => element.click().await.is_ok(),
            Err(_) => false,
        })
        .await;
    }

    /// Unfolds details; once more if they moved away from under the pointer.
    pub(crate) async fn open(&self, details: &str) {
        until(&format!("{details} open"), async || {
            if let Ok(summary) = self.0.find(Locator::Css(&format!("{details}:not([open]) > summary"))).await
            {
                // Of an error a look tells what came of it.
                let _ = summary.click().await;
            }
            self.0.find(Locator::Css(&format!("{details}[open]"))).await.is_ok()
        })
        .await;
    }

    /// Presses the button with a label.
    pub(crate) async fn press(&self, label: &str) {
        self.click(&format!("[aria-label=\"{label}\"]")).await;
    }

    /// Waits until an element lacks texts.
    pub(crate) async fn lacks(&self, selector: &str, texts: &[&str]) {
        until(&format!("{selector} without {texts:?}"), async || {
            let said = match self.0.find(Locator::Css(selector)).await {
                Ok(element) => element.text().await,
                Err(error) => Err(error),
            };
            said.is_ok_and(|said| texts.iter().all(|text| !said.contains(text)))
        })
        .await;
    }

    pub(crate) async fn picture(&self, name: &str) {
        if let Some(folder) = std::env::var_os("FRONTDESK_PICTURES") {
            let picture = self.0.screenshot().await.unwrap();
            std::fs::write(Path::new(&folder).join(name), picture).unwrap();
        }
    }
}

/// Waits for something, but not for ever.
pub(crate) async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
    }
}
