//! What `frontdesk disk` served of a VM's disk, and why so, in words. Only from what the daemon told.

use crate::words::{self, count};
use frontdesk_control_protocol::DiskStatus;

/// Who serves it, and how many requests in each class.
pub(super) fn line(disk: &DiskStatus) -> String {
    let [high, common, low] = disk.report.served;
    let trouble = disk.trouble.as_ref().map(|trouble| format!("; nobody comes first, for {trouble}"));
    format!(
        "disk {} is served by frontdesk disk (thread {}): {high} requests High, {common} Common, {low} Low{}",
        words::name(&disk.name),
        disk.thread,
        trouble.unwrap_or_default()
    )
}

/// The same, and which applications asked, and why their requests had their classes.
pub(super) fn requests(disk: &DiskStatus) -> String {
    let report = &disk.report;
    let all: u64 = report.served.iter().sum();
    let all = count(all, "request", "requests");
    let mut text = format!("Its {}. Of {} of {all} it was known who asked.", line(disk), report.known);
    for application in &report.applications {
        let who = match (&application.name, application.task) {
            (Some(name), _) => words::name(name),
            (None, Some(task)) => format!("task {:#x}", task.0),
            (None, None) => "somebody".to_owned(),
        };
        let (post, pre) = (application.post, application.pre);
        let why = match application.interactive {
            true => "a person is thought to wait for it",
            false => "it reads whether or not a person did something",
        };
        let [high, common, low] = application.served;
        text += &format!(
            " {who}: {high} High, {common} Common, {low} Low; of late {post} reads soon after an input and {pre} soon before one, so {why}."
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn who_asked_and_why_is_told() {
        let report = json!({
            "queues": 1, "served": [3, 40, 2], "known": 44, "applications": [
                {"task": 4096, "name": "writer", "interactive": true, "post": 3, "pre": 0, "served": [3, 0, 0]},
                {"task": 8192, "interactive": false, "post": 7, "pre": 9, "served": [0, 39, 2]},
            ],
        });
        let disk = json!({"name": "alice", "thread": 42, "report": report});
        let disk: DiskStatus = serde_json::from_value(disk).unwrap();
        let told = requests(&disk);
        for part in [
            "disk alice is served by frontdesk disk (thread 42): 3 requests High, 40 Common, 2 Low.",
            "Of 44 of 45 requests",
            "writer: 3 High, 0 Common, 0 Low; of late 3 reads soon after an input and 0 soon before one, so a person",
            "task 0x2000: 0 High, 39 Common, 2 Low",
        ] {
            assert!(told.contains(part), "{told}");
        }
        let troubled = DiskStatus { trouble: Some("it is so".into()), ..disk };
        assert!(line(&troubled).ends_with("; nobody comes first, for it is so"));
    }
}
