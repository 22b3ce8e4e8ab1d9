//! What Prometheus is told, how often, and what its rules and the dashboard make of it.

use super::*;
use frontdesk_disk_protocol::DiskReport;
use frontdesk_engine::{
    AsymmetricExplain, BackgroundExplain, EpisodeCause, EpisodeExplain, MultimediaExplain, PlayerExplain,
    StarvationExplain,
};
use std::net::TcpStream;

#[test]
fn metrics_come_over_http() {
    // A port that was free a moment ago.
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let _world = World::new(|config| config.metrics = Some(address));
    let fetch = |request: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut response = String::new();
        let _ = stream.read_to_string(&mut response);
        response
    };
    let metrics = fetch("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(
        metrics.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text"),
        "{metrics}"
    );
    let line = "frontdesk_vcpu_boosts_total{vm=\"alice\",vcpu=\"0\"} ";
    assert!(metrics.contains(line), "{metrics}");
    let body = metrics.split("\r\n\r\n").nth(1).unwrap();
    assert!(metrics.contains(&format!("Content-Length: {}\r\n", body.len())));
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", "404"),
        ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
        ("hello\r\n\r\n", "400"),
        ("GET /metrics", "400"),
        (&format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(20_000)), "431"),
    ] {
        let response = fetch(request);
        // What was too long was not read to its end, and so the answer may be lost on its way.
        assert!(
            response.starts_with(&format!("HTTP/1.1 {status} ")) || status == "431",
            "{request:.20}: {response}"
        );
    }
}

/// Whoever fetches metrics without a pause takes neither the loop's time nor many threads' from it.
#[test]
fn metrics_have_a_pace() {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let world = World::new(|config| config.metrics = Some(address));
    let start = std::time::Instant::now();
    const FETCHES: usize = 100;
    for _ in 0..FETCHES {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        assert!(response.starts_with("HTTP/1.1 200 OK") && response.ends_with("# EOF\n"), "{response}");
    }
    // In periods of 100 ms twenty are accepted, and each answer is good for 500 ms.
    let took = usize::try_from(start.elapsed().as_millis()).unwrap();
    assert!(FETCHES <= 20 * (took / 100 + 1), "{FETCHES} in {took} ms");
    assert!(world.asked() <= took / 500 + 1, "the loop was asked {} times in {took} ms", world.asked());
    // Those who hold all places and say nothing are dropped after a while.
    let held: Vec<_> = (0..MAX_CLIENTS).map(|_| TcpStream::connect(address).unwrap()).collect();
    held.iter().for_each(|mut stream| assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "a word of ours"));
}

/// Who asks and never reads the answer keeps nobody else from one, neither for metrics nor at the socket.
#[test]
fn who_does_not_read_keeps_no_place() {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let world = World::new(|config| config.metrics = Some(address));
    let asked = |mut stream: TcpStream| {
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        stream
    };
    let mute: Vec<_> = (0..2 * MAX_CLIENTS).map(|_| asked(TcpStream::connect(address).unwrap())).collect();
    let mut response = String::new();
    asked(TcpStream::connect(address).unwrap()).read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200 OK"), "{response}");
    let at_socket: Vec<_> = (0..2 * MAX_CLIENTS)
        .map(|_| {
            let mut stream = UnixStream::connect(world.socket()).unwrap();
            // Those without a place are turned away.
            let _ = stream.write_all(b"{\"status\":{}}\n");
            stream
        })
        .collect();
    // All places are taken for a moment.
    while ask_status(&world.socket(), None).is_err() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    drop((mute, at_socket));
}

const FORGOTTEN: StarvationExplain =
    StarvationExplain { turns: 31, longest_wait_ns: 1_600_000_000, boosted_ns: 300_000_000 };

fn somebody_waits() -> AsymmetricExplain {
    let (since, until) = (Time(1), Time(2));
    let episode = EpisodeExplain { cause: EpisodeCause::Enter, since, until, acts: true, slow: vec![0, 1] };
    let background = vec![BackgroundExplain { task: TaskId(1), since, load_permille: 900 }];
    AsymmetricExplain { episode: Some(episode), background, sound_client: None, slowed: 7, restored: 3 }
}

fn two_films() -> MultimediaExplain {
    let player = |task, frame_rate| PlayerExplain {
        task: TaskId(task),
        gpu: false,
        since: Time(1),
        frame_rate,
        desired_rate: 24.0,
        share_permille: 2000,
    };
    MultimediaExplain {
        players: vec![player(1, 23.5), player(2, 12.0)],
        share_permille: 2000,
        boosts: 120,
        in_debt: 5,
        limited: 2,
        boosted_ns: 300_000_000,
    }
}

fn disk() -> DiskStatus {
    let report = DiskReport { served: [3, 5, 7], ..DiskReport::default() };
    DiskStatus { name: "root".into(), thread: 1, trouble: None, report }
}

/// Every metric in the dashboard and the alert rules is one that there is.
#[test]
fn the_dashboard_and_the_rules_know_the_metrics() {
    let (reply, _) = std::sync::mpsc::sync_channel(1);
    let mut status = answer(&StatusRequest::new(None, 0, reply)).unwrap();
    let text = exposition(&status);
    assert!(text.ends_with("# EOF\n"));
    status.vms[0].engine.starvation = Some(FORGOTTEN);
    status.vms[0].engine.asymmetric = Some(somebody_waits());
    status.vms[0].engine.multimedia = Some(two_films());
    status.vms[0].disks = vec![disk()];
    let all = exposition(&status);
    let exists = |name: &str| all.lines().any(|line| line.split(['{', ' ']).next() == Some(name));
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    for file in ["grafana-dashboard.json", "prometheus-rules.yml"] {
        let content = std::fs::read_to_string(packaging.join(file)).unwrap();
        let names: std::collections::BTreeSet<&str> = content
            .split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
            .filter(|word| word.starts_with("frontdesk_"))
            .collect();
        assert!(names.len() > 4, "{file} has {names:?}");
        let unknown: Vec<_> = names.into_iter().filter(|name| !exists(name)).collect();
        assert!(unknown.is_empty(), "{file} names {unknown:?}, which no daemon has");
    }
    let dashboard = std::fs::read_to_string(packaging.join("grafana-dashboard.json")).unwrap();
    serde_json::from_str::<serde_json::Value>(&dashboard).unwrap();
    insta::assert_snapshot!(text.lines().filter(|line| line.starts_with('#')).collect::<Vec<_>>().join("\n"));
}

/// Each alert fires when it should and not before: crates/host/tests/alerts.yml has when.
#[test]
fn the_alerts_fire_when_they_should() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let cases = root.join("crates/host/tests/alerts.yml");
    let (rules, tried) =
        (root.join("packaging/prometheus-rules.yml"), std::fs::read_to_string(&cases).unwrap());
    for line in std::fs::read_to_string(rules).unwrap().lines() {
        if let Some((_, alert)) = line.split_once("- alert: ") {
            assert!(tried.contains(&format!("- alertname: {alert}\n")), "{alert} never fires in {cases:?}");
        }
    }
    let own = root.join("target/promtool/promtool");
    let program = if own.exists() { own.as_path() } else { Path::new("promtool") };
    let Ok(output) = std::process::Command::new(program).args(["test", "rules"]).arg(&cases).output() else {
        let why = "it is neither in target/promtool nor in the PATH (tools/setup.sh vms)";
        return leave_out("the_alerts_fire_when_they_should", Need::Promtool, why);
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn requests_of_disks_are_counted_by_class() {
    let (reply, _) = std::sync::mpsc::sync_channel(1);
    let mut status = answer(&StatusRequest::new(None, 0, reply)).unwrap();
    status.vms[0].disks = vec![disk()];
    let text = exposition(&status);
    for (class, requests) in [("high", 3), ("common", 5), ("low", 7)] {
        let line = format!("disk=\"root\",class=\"{class}\"}} {requests}");
        assert!(
            text.lines().any(|told| told.starts_with("frontdesk_vm_disk_requests") && told.contains(&line)),
            "{text}"
        );
    }
}

#[test]
fn what_a_person_waits_for_is_measured() {
    let (reply, _) = std::sync::mpsc::sync_channel(1);
    let mut status = answer(&StatusRequest::new(None, 0, reply)).unwrap();
    assert!(!exposition(&status).contains("frontdesk_vm_episode"), "nobody has used it");
    status.vms[0].engine.asymmetric = Some(somebody_waits());
    let text = exposition(&status);
    for (metric, value) in [
        ("episode", "1.0"),
        ("slow_vcpus", "2.0"),
        ("background_tasks", "1.0"),
        ("vcpus_slowed_total", "7.0"),
        ("vcpus_restored_total", "3.0"),
    ] {
        let line = format!("\nfrontdesk_vm_{metric}{{vm=\"alice\"}} {value}\n");
        assert!(text.contains(&line), "{line}{text}");
    }
}

#[test]
fn what_a_vm_plays_is_measured() {
    let (reply, _) = std::sync::mpsc::sync_channel(1);
    let mut status = answer(&StatusRequest::new(None, 0, reply)).unwrap();
    assert!(!exposition(&status).contains("frontdesk_vm_frame_rate"), "nothing has played");
    status.vms[0].engine.multimedia = Some(two_films());
    let text = exposition(&status);
    for (metric, value) in [
        ("players", "2.0"),
        ("frame_rate", "35.5"),
        ("desired_frame_rate", "48.0"),
        ("media_share_ratio", "2.0"),
        ("media_boosts_total", "120.0"),
        ("media_boosts_refused_total", "7.0"),
        ("media_boosted_seconds_total", "0.3"),
    ] {
        let line = format!("\nfrontdesk_vm_{metric}{{vm=\"alice\"}} {value}\n");
        assert!(text.contains(&line), "{line}{text}");
    }
}

#[test]
fn metrics_of_what_the_host_forgot() {
    let (reply, _) = std::sync::mpsc::sync_channel(1);
    let mut status = answer(&StatusRequest::new(None, 0, reply)).unwrap();
    assert!(!exposition(&status).contains("longest_wait"), "it forgot nobody");
    status.vms[0].engine.starvation = Some(FORGOTTEN);
    let text = exposition(&status);
    for (metric, value) in [("longest_wait_seconds", "1.6"), ("starvation_turns_total", "31.0")] {
        let line = format!("\nfrontdesk_vm_{metric}{{vm=\"alice\"}} {value}\n");
        assert!(text.contains(&line), "{line}{text}");
    }
}
