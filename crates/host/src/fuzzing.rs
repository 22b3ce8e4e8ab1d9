//! What clients of the metrics may send, and a configuration may say: bodies of fuzzing with coverage
//! (`fuzz/`).

use crate::config::Settings;
use crate::control::http;

/// A request for the metrics.
pub fn http(bytes: &[u8]) {
    if let Ok(Some((method, path))) = http::parse(bytes) {
        assert!(method.len() + path.len() <= bytes.len());
    }
}

/// A configuration: an engine takes what has no problems.
pub fn settings(text: &str) {
    if let Ok(settings) = Settings::parse(text, "fuzzing".to_owned()) {
        assert!(frontdesk_engine::Engine::new(settings.engine()).is_ok());
        let _ = settings.of_vm("alice");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fuzz_http(line in "(GET|[A-Z]{1,5}) /[a-z?/]{0,9} HTTP/1\\.[019]\r\n", rest in prop::collection::vec(any::<u8>(), 0..200)) {
            super::http(&[line.as_bytes(), &rest].concat());
        }

        /// The file as it is shipped, with a value at another place than its own.
        #[test]
        fn fuzz_settings(key in any::<prop::sample::Index>(), value in "-?[0-9]{1,20}|true|\"[a-z0-9.]{0,9}\"|\\[\\]|[0-9]e[0-9]{1,3}|\\PC{0,5}") {
            let shipped = include_str!("../../../packaging/frontdesk.toml");
            let keys = shipped.lines().filter(|line| line.contains(" = ")).count();
            let mut at = key.index(keys);
            let changed = shipped.lines().map(|line| match line.trim_start_matches('#').split_once(" = ") {
                Some((key, _)) if !line.starts_with("# ") => {
                    let here = at == 0;
                    at = at.wrapping_sub(1);
                    if here { format!("{key} = {value}\n") } else { String::new() }
                }
                _ => format!("{line}\n"),
            });
            super::settings(&changed.collect::<String>());
        }
    }
}
