//! What a daemon could tell.

use crate::MS;
use frontdesk_control_protocol::Status;
use frontdesk_engine::{Cause, Decision, Protocol, Reason, Time};
use serde_json::{Value, json};

/// The sample, with a VM in which somebody waits beside background work, a film plays, and which has a disk.
pub(crate) fn busy() -> Status {
    let mut sample: Value = serde_json::from_str(include_str!("../../src/status/sample.json")).unwrap();
    let since = sample["at_ns"].as_u64().unwrap() - 2_500 * MS;
    let application = |task: u64, name: Value, interactive: bool, served: [u64; 3]| {
        let counts =
            json!({ "task": task, "interactive": interactive, "post": 4, "pre": 1, "served": served });
        let mut counts = counts.as_object().unwrap().clone();
        counts.extend(name.is_string().then(|| ("name".to_owned(), name)));
        Value::Object(counts)
    };
    let more = json!({
        "multimedia": {
            "players": [{
                "task": 4096, "gpu": false, "since_ns": since, "share_permille": 1500,
                "frame_rate": 23.5, "desired_rate": 24.0,
            }],
            "share_permille": 1500, "boosts": 240, "in_debt": 0, "limited": 0, "boosted_ns": 1_000_000_000u64,
        },
        "asymmetric": {
            "episode": {
                "cause": "enter", "since_ns": since, "until_ns": since + 5_000 * MS, "acts": true, "slow": [1],
            },
            "background": [{ "task": 8192, "since_ns": since, "load_permille": 620 }],
            "sound_client": null, "slowed": 3, "restored": 2,
        },
        "disks": [{
            "name": "disk0", "thread": 12, "trouble": "its <i>channel</i> is closed",
            "report": {
                "queues": 1, "served": [41, 12, 903], "known": 956,
                "applications": [
                    application(12288, json!("<b>calc</b>"), true, [41, 0, 3]),
                    application(4096, Value::Null, false, [0, 12, 900]),
                ],
            },
        }],
    });
    sample["vms"][0].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    sample["vms"][0]["unheard"] = json!(["packets that come by <b>macvtap</b> are not heard"]);
    serde_json::from_value(sample).unwrap()
}

/// What was decided about a packet for TCP port 7.
pub(crate) fn decision(at_ns: u64, verdict: Reason) -> Decision {
    Decision { at: Time(at_ns), cause: Cause::Packet { protocol: Protocol::Tcp, port: 7 }, verdict }
}
