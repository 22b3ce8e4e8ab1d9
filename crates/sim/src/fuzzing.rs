//! What rt-app's files and scenarios may say: bodies of fuzzing with coverage (`fuzz/`).

use crate::rtapp::{self, Conditions};
use frontdesk_scenario::{Overrides, Scenario};

/// A file of rt-app.
pub fn rtapp(text: &str) {
    let guest = Conditions { vcpus: 2, cost_scale: 1.0, copy_kib: 200 };
    let _ = rtapp::parse(text, "fuzzing".as_ref(), &guest);
}

/// A scenario.
pub fn scenario(text: &str) {
    if let Ok(scenario) = Scenario::parse(text, "fuzzing".as_ref(), &Overrides::default()) {
        let _ = scenario.vm_names();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fuzz_rtapp(pieces in prop::collection::vec(prop::sample::select(PIECES), 0..30)) {
            super::rtapp(&format!("{{\"tasks\":{{\"t\":{{{}}}}}}}", pieces.concat()));
        }

        #[test]
        fn fuzz_scenarios(at in any::<prop::sample::Index>(), value in "-?[0-9]{1,20}|true|\"[a-z0-9.]{0,9}\"|\\[\\]|\\{\\}|\\PC{0,5}") {
            let whole = include_str!("../../../scenarios/echo-mixed.toml");
            let lines = whole.lines().count();
            let at = at.index(lines);
            let changed = whole.lines().enumerate().map(|(number, line)| match line.split_once(" = ") {
                Some((key, _)) if number == at => format!("{key} = {value}\n"),
                _ => format!("{line}\n"),
            });
            super::scenario(&changed.collect::<String>());
        }
    }

    const PIECES: &[&str] = &[
        "\"run\":1000,",
        "\"sleep\":5,",
        "\"timer\":{\"ref\":\"a\",\"period\":9},",
        "\"phases\":{\"p\":{",
        "\"loop\":-1,",
        "\"loop\":18446744073709551615,",
        "\"instance\":9,",
        "\"lock\":\"m\",",
        "\"unlock\":\"m\",",
        "\"wait\":{\"ref\":\"q\",\"mutex\":\"m\"},",
        "\"signal\":\"q\",",
        "\"cpus\":[0,1],",
        "\"mem\":1e300,",
        "\"x\":0",
        "{",
        "}",
        "]",
    ];
}
