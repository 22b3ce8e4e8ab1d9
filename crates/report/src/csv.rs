//! Results as CSV, for statistics programs.

use frontdesk_scenario::{Outcome, Repeat};
use std::io::Write;

/// One scenario that was run: what was set, as key and value, and what came out.
pub type Point<'a> = (Vec<(&'a str, &'a str)>, &'a Outcome);

/// Columns after those of what was set.
const COLUMNS: [&str; 16] = [
    "arm",
    "repeat",
    "vm",
    "requests",
    "mean_ms",
    "p50_ms",
    "p95_ms",
    "p99_ms",
    "max_ms",
    "cpu_ms",
    "cpu_share",
    "boosts",
    "boost_hits",
    "request_boosts",
    "unanswered_boosts",
    "seconds",
];

/// Writes a line for each point, arm, repeat and VM (VM/WORKLOAD where a VM has several loads). A column for
/// each key that was set in the points comes first. Numbers that a VM has not are empty; boosts are those of
/// all VMs of the arm.
///
/// # Errors
/// `out` cannot be written.
pub fn csv(points: &[Point<'_>], out: impl Write) -> Result<(), ::csv::Error> {
    let mut writer = ::csv::Writer::from_writer(out);
    let mut keys: Vec<&str> = Vec::new();
    for (key, _) in points.iter().flat_map(|(set, _)| set) {
        if !keys.contains(key) {
            keys.push(key);
        }
    }
    writer.write_record(keys.iter().chain(&COLUMNS))?;
    for (set, outcome) in points {
        let set: Vec<String> = keys.iter().map(|key| value(set, key)).collect();
        for (arm, result) in &outcome.arms {
            for (number, repeat) in result.repeats.iter().enumerate() {
                for vm in vms(repeat) {
                    let own = [arm.clone(), (number + 1).to_string(), vm.to_owned()];
                    writer.write_record(set.iter().cloned().chain(own).chain(numbers(repeat, vm)))?;
                }
            }
        }
    }
    writer.flush()?;
    Ok(())
}

fn value(set: &[(&str, &str)], key: &str) -> String {
    // The last assignment counts.
    set.iter().rev().find(|(own, _)| *own == key).map_or_else(String::new, |(_, value)| (*value).to_owned())
}

fn vms(repeat: &Repeat) -> Vec<&str> {
    let mut vms: Vec<&str> = repeat.cpu_ms.keys().map(String::as_str).collect();
    vms.extend(repeat.response_ms.keys().map(String::as_str).filter(|key| !repeat.cpu_ms.contains_key(*key)));
    vms
}

fn numbers(repeat: &Repeat, vm: &str) -> Vec<String> {
    let optional = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    let response = repeat.response_ms.get(vm);
    let of = |pick: fn(&frontdesk_scenario::Summary) -> f64| optional(response.map(pick));
    vec![
        response.map_or_else(String::new, |response| response.count.to_string()),
        of(|response| response.mean),
        of(|response| response.p50),
        of(|response| response.p95),
        of(|response| response.p99),
        of(|response| response.max),
        optional(repeat.cpu_ms.get(vm).copied()),
        optional(repeat.cpu_share.get(vm).copied()),
        repeat.boosts.to_string(),
        repeat.boost_hits.to_string(),
        repeat.request_boosts.to_string(),
        repeat.unanswered_boosts.to_string(),
        repeat.seconds.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use frontdesk_scenario::{ArmResult, HostInfo, Summary};

    #[test]
    fn a_line_for_each_point_arm_repeat_and_vm() {
        let summary = Summary { count: 2, mean: 1.5, p50: 1.0, p95: 2.0, p99: 2.0, max: 2.0 };
        let repeat = Repeat {
            response_ms: [("a".to_owned(), summary)].into_iter().collect(),
            cpu_ms: [("a".to_owned(), 10.0), ("b".to_owned(), 20.5)].into_iter().collect(),
            cpu_share: [("a".to_owned(), 0.5)].into_iter().collect(),
            boosts: 3,
            boost_hits: 2,
            request_boosts: 4,
            unanswered_boosts: 1,
            seconds: 1.0,
            ..Repeat::default()
        };
        let arm = ArmResult { repeats: vec![repeat.clone(), repeat], ..ArmResult::default() };
        let arms = [("stock".to_owned(), arm)].into_iter().collect();
        let outcome = Outcome {
            scenario: "x".to_owned(),
            host: HostInfo::default(),
            arms,
            checks: Vec::new(),
            tables: Vec::new(),
            figures: Vec::new(),
            screenshots: Vec::new(),
        };
        let points =
            [(vec![("vm.cpu.count", "1"), ("x", "a,b")], &outcome), (vec![("vm.cpu.count", "3")], &outcome)];
        let mut out = Vec::new();
        csv(&points, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1 + 2 * 2 * 2);
        assert!(lines[0].starts_with("vm.cpu.count,x,arm,repeat,vm,requests,mean_ms"), "{}", lines[0]);
        assert_eq!(lines[1], r#"1,"a,b",stock,1,a,2,1.5,1,2,2,2,10,0.5,3,2,4,1,1"#);
        assert_eq!(lines[2], r#"1,"a,b",stock,1,b,,,,,,,20.5,,3,2,4,1,1"#);
        assert!(lines[5].starts_with("3,,stock,1,a,2,"), "{}", lines[5]);
    }
}
