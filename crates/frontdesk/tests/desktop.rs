//! The lab's desktops on real VMs: somebody types and sees what comes of it. Counts and pictures only.
//!
//! Needs root, QEMU, and what `make build` makes. The first run makes the desktops' system.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn a_spreadsheet_opens_pages_turn_and_a_film_plays() {
    let folder = tempfile::tempdir().unwrap();
    let (json, html) = (folder.path().join("result.json"), folder.path().join("report.html"));
    let scenario = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/mm/desktop.toml");
    let output = Command::new(env!("CARGO_BIN_EXE_frontdesk"))
        .arg("lab")
        .arg(scenario)
        .args(["--arms", "still,playing", "--duration", "60s", "--json"])
        .arg(&json)
        .arg("--html")
        .arg(&html)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let result: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    let (still, playing) = (&result["arms"]["still"], &result["arms"]["playing"]);
    for vm in ["office", "reader"] {
        assert!(still["response_ms"][vm]["count"].as_u64().unwrap() > 0, "{still}");
    }
    assert!(playing["rates"]["film/player"]["per_s"].as_f64().unwrap() > 0.0, "{playing}");

    let page = std::fs::read_to_string(html).unwrap();
    let shots: Vec<&Value> =
        result["screenshots"].as_array().unwrap().iter().filter(|shot| shot["arm"] == "playing").collect();
    let vms: Vec<&str> = shots.iter().map(|shot| shot["vm"].as_str().unwrap()).collect();
    assert_eq!(vms, ["office", "reader", "film"]);
    for shot in &shots {
        let png = shot["png"].as_str().unwrap();
        // What every PNG file begins with.
        assert!(png.starts_with("iVBORw0KGgo"), "{}", &png[..40]);
        assert!(page.contains(&format!("data:image/png;base64,{png}")));
    }
    // A film is no document.
    assert_ne!(shots[1]["png"], shots[2]["png"]);
}
