//! Studies of reservations: the other kind of scenario file.

use frontdesk_scenario::{Experiment, Overrides, PeriodSlice, Study};
use std::path::Path;
use std::time::Duration;

const STUDY: &str = r#"
name = "small"
description = "A study."
repeats = 2
duration = "1s"
cpus = [0]

[study]
kind = "delivered"
cases = [["10ms", "2ms"], ["1ms500us", "1ms"]]

[arms.user]

[arms.kernel]
by = "sched-deadline"

[[check]]
name = "it"
measure = "shortfall"
arm = "user"
case = "10ms/2ms"
over = "kernel"
at_most = 1.0
"#;

fn study(text: &str, overrides: &Overrides) -> Result<Study, String> {
    match Experiment::parse(text, Path::new("small.toml"), overrides) {
        Ok(Experiment::Processes(study)) => Ok(*study),
        Ok(Experiment::Vms(_)) => panic!("no study"),
        Err(error) => Err(error.to_string()),
    }
}

fn refused(of: &str, becomes: &str) -> String {
    assert!(STUDY.contains(of));
    study(&STUDY.replace(of, becomes), &Overrides::default()).expect_err("a study that is wrong")
}

#[test]
fn a_file_with_a_table_study_is_one() {
    let small = study(STUDY, &Overrides::default()).unwrap();
    assert_eq!(small.arms.keys().collect::<Vec<_>>(), ["user", "kernel"]);
    let case = PeriodSlice { period: Duration::from_micros(1500), slice: Duration::from_millis(1) };
    assert_eq!(case.to_string(), "1ms500us/1ms");
    let again = toml::from_str::<Study>(&toml::to_string(&small).unwrap()).unwrap();
    assert_eq!(again, small);
}

#[test]
fn overrides_hold_for_studies_too() {
    let overrides = Overrides {
        set: vec![r#"study.cases=[["10ms","1ms"]]"#.to_owned(), "check.0.case=10ms/1ms".to_owned()],
        repeats: Some(7),
        duration: Some(Duration::from_millis(300)),
        arms: vec!["user".to_owned()],
    };
    let study = study(STUDY, &overrides).unwrap();
    assert_eq!((study.repeats, study.duration), (7, Duration::from_millis(300)));
    assert!(study.arms.len() == 1 && study.checks.is_empty(), "the check needs the other arm");
}

#[test]
fn errors_name_key_value_and_range() {
    insta::assert_snapshot!(refused("\"2ms\"", "\"20ms\""), @"small.toml:10: study.cases.0.1 = 20ms: allowed is 10us to 10ms");
    insta::assert_snapshot!(refused("\"1ms500us\"", "\"1us\""), @"small.toml:10: study.cases.1.0 = 1us: allowed is 100us to 1day");
    insta::assert_snapshot!(refused("cases = [[", "cases = [[\"10ms\", \"2ms\"], ["), @"small.toml:10: study.cases.1 = 10ms/2ms: allowed is each once");
    insta::assert_snapshot!(refused("kind = \"delivered\"", "kind = \"sweep\""), @"small.toml:8: study: unknown field `cases`, expected `periods` or `utilisations`");
    insta::assert_snapshot!(refused("arm = \"user\"", "arm = \"usr\""), @r#"small.toml:20: check.0.arm = "usr": allowed is one of user, kernel"#);
    insta::assert_snapshot!(refused("\"shortfall\"", "\"kept\""), @r#"small.toml:19: check.0.measure = "kept": allowed is one of median-error, shortfall, overrun, miss-rate, stall-rate, miss-time"#);
    insta::assert_snapshot!(refused("at_most = 1.0", ""), @"small.toml:17: check.0.at_most = nothing and nothing: allowed is either `at_most` or `at_least`");
    insta::assert_snapshot!(refused("\"10ms/2ms\"", "\"10ms\""), @r#"small.toml:21: check.0.case = "10ms": allowed is one of 10ms/2ms, 1ms500us/1ms"#);
    insta::assert_snapshot!(refused("by = \"sched-deadline\"", "by = \"sched-deadline\"\nhard = true"), @r#"small.toml:16: arms.kernel.hard = true: allowed is only with by = "frontdesk""#);
    insta::assert_snapshot!(refused("cpus = [0]", "cpus = [0, 0]"), @"small.toml:6: cpus = [0, 0]: allowed is each CPU once");
    insta::assert_snapshot!(refused("duration = \"1s\"", "duration = \"1ms\""), @"small.toml:5: duration = 1ms: allowed is 100ms to 10m");
}
