//! Clients as they should be.

use super::*;
use frontdesk_control_protocol::{Answer, Query, RefusalKind, Reserve, Target};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

const MS: u64 = 1_000_000;

fn reserve(slice_ns: u64) -> Query {
    let target = Target::Vm("alice".to_owned());
    Query::Reserve(Reserve { target, period_ns: 10 * MS, slice_ns, hard: true, phase_ns: Some(MS) })
}

#[test]
fn requests_and_answers_are_those_of_the_socket() {
    let world = World::new();
    let mut client = world.user();
    let Answer::Reservation(made) = client.ask(&reserve(2 * MS)).unwrap() else { panic!() };
    assert_eq!((made.slice_ns, made.hard, made.cpus.as_slice()), (2 * MS, true, &[0][..]));
    assert_eq!(world.daemon.asked(), [reserve(2 * MS)]);
    let Answer::Reservations(all) = client.ask(&Query::Reservations {}).unwrap() else { panic!() };
    assert_eq!(all.reservations.len(), 1);
    let Answer::Targets(found) = client.ask(&Query::Targets {}).unwrap() else { panic!() };
    assert!(found.targets[0].reserved);
    let RemoteError::Refused { refusal, .. } = client.ask(&reserve(10 * MS)).unwrap_err() else { panic!() };
    assert_eq!((refusal.kind, refusal.fit.unwrap().slice_ns), (RefusalKind::Infeasible, 9 * MS));
    let unknown = Query::Release { target: Target::Process(1) };
    let RemoteError::Refused { refusal, .. } = client.ask(&unknown).unwrap_err() else { panic!() };
    assert_eq!(refusal.kind, RefusalKind::NotReserved);
}

#[test]
fn nothing_is_done_for_who_is_not_logged_in() {
    let world = World::new();
    let mut client = world.client();
    assert_eq!(not_logged_in(client.ask(&reserve(MS))), "log in first");
    assert_eq!(not_logged_in(client.log_in("correct horsf")), "the password is wrong");
    let token = client.log_in(PASSWORD).unwrap();
    client.ask(&reserve(MS)).unwrap();
    let mut other = world.client();
    other.set_token(token);
    other.ask(&Query::Targets {}).expect("a token can be kept");
    other.log_out().unwrap();
    for mut client in [client, other] {
        not_logged_in(client.ask(&Query::Targets {}));
    }
    assert_eq!(world.daemon.asked().len(), 1);
}

/// A password is never sent to a server that is not known.
#[test]
fn a_server_is_known_by_its_certificate() {
    let world = World::new();
    let mut stranger = world.client_with(Trust::Certificate(None), None);
    match stranger.log_in(PASSWORD).unwrap_err() {
        RemoteError::Unknown { fingerprint, .. } => assert_eq!(fingerprint, world.fingerprint),
        error => panic!("{error}"),
    }
    let other = World::new();
    let mut deceived = other.client_with(Trust::Certificate(Some(world.fingerprint)), None);
    match deceived.log_in(PASSWORD).unwrap_err() {
        RemoteError::Changed { found, expected, .. } => {
            assert_eq!((found, expected), (other.fingerprint, world.fingerprint));
        }
        error => panic!("{error}"),
    }
    let issuers = || Trust::issuers(&world.folder.path().join("certificate.pem")).unwrap();
    let mut right = world.client_with(issuers(), None);
    right.log_in(PASSWORD).unwrap();
    let wrong = other.client_with(issuers(), None).log_in(PASSWORD).unwrap_err();
    assert!(matches!(wrong, RemoteError::Tls { .. }), "{wrong}");
}

#[test]
fn without_a_server_it_is_said_so() {
    let world = World::new();
    let address = world.address();
    drop(world);
    let mut client = Remote::new(address, Trust::Certificate(None), None).unwrap();
    let error = client.ask(&Query::Targets {}).unwrap_err().to_string();
    assert!(error.contains("is `frontdesk serve` running there?"), "{error}");
}

/// Writes clients.pem into `folder`, and the certificate and key of a client into files beside it.
fn issue(folder: &Path) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    std::fs::write(folder.join("clients.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = Issuer::new(params, key);
    for name in ["client", "stranger"] {
        let own = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![format!("{name}.example")]).unwrap();
        let certificate =
            if name == "client" { params.signed_by(&own, &issuer) } else { params.self_signed(&own) };
        let both = certificate.unwrap().pem() + &own.serialize_pem();
        std::fs::write(folder.join(format!("{name}.pem")), both).unwrap();
    }
}

fn identity(world: &World, name: &str) -> Option<ClientCertificate> {
    let file = world.folder.path().join(format!("{name}.pem"));
    Some(ClientCertificate::load(&file, &file).unwrap())
}

#[test]
fn a_certificate_stands_for_the_password() {
    for required in [false, true] {
        let world = World::with(required, issue);
        let trust = || Trust::Certificate(Some(world.fingerprint));
        let mut certified = world.client_with(trust(), identity(&world, "client"));
        certified.ask(&reserve(MS)).unwrap();
        let mut stranger = world.client_with(trust(), identity(&world, "stranger"));
        stranger.log_in(PASSWORD).expect_err("the handshake fails, whatever the password");
        let logged_in = world.client().log_in(PASSWORD);
        assert_eq!(logged_in.is_ok(), !required, "{logged_in:?}");
    }
}

const LOOK_PASSWORD: &str = "battery staple";

fn with_look_password() -> World {
    World::with(false, |folder| assert!(Folder::new(folder).set_look_password(LOOK_PASSWORD).unwrap()))
}

#[test]
fn who_may_only_look_in_changes_nothing() {
    let world = with_look_password();
    let mut client = world.client();
    client.log_in(LOOK_PASSWORD).unwrap();
    assert!(!client.may_change().unwrap());
    client.ask(&Query::Reservations {}).unwrap();
    client.ask(&Query::Targets {}).unwrap();
    let target = || Target::Vm("alice".to_owned());
    for change in [
        reserve(MS),
        Query::Release { target: target() },
        Query::Pause { target: target() },
        Query::Resume { target: target() },
    ] {
        let RemoteError::Refused { refusal, .. } = client.ask(&change).unwrap_err() else { panic!() };
        assert_eq!(refusal.kind, RefusalKind::Forbidden, "{change:?}");
    }
    assert!(world.daemon.asked().is_empty());
    assert!(world.user().may_change().unwrap());
    not_logged_in(world.client().may_change());
}

#[test]
fn a_vm_is_explained_to_who_has_logged_in() {
    let world = with_look_password();
    world
        .daemon
        .tell(serde_json::from_str(include_str!("../../../frontdesk/src/status/sample.json")).unwrap());
    let token = world.client().log_in(LOOK_PASSWORD).unwrap();
    let bearer = format!("Authorization: Bearer {token}\r\n");
    let ask = |query: &str| {
        let answer = world.request("POST /why", &bearer, query);
        (status(&answer), answer)
    };
    let alice = "{\"status\":{\"vm\":\"alice\"}}";
    let (code, answer) = ask(alice);
    assert!(code == 200 && answer.ends_with("{\"why\":[\"alice of 1 VMs\"]}"), "{answer}");
    assert_eq!(status(&world.request("POST /why", "", alice)), 401);
    for (query, expected, says) in [
        ("{\"status\":{\"vm\":\"nobody\"}}", 404, "nobody"),
        ("{\"status\":{}}", 400, "one VM"),
        ("{\"reservations\":{}}", 400, "one VM"),
        ("{", 400, "malformed"),
    ] {
        let (code, answer) = ask(query);
        assert!(code == expected && answer.contains(says), "{query}: {answer}");
    }
}

/// What a server says of another host, asked by somebody who has logged in.
fn of_other(world: &World, name: &str, query: &str) -> (u16, String) {
    let token = world.client().log_in(PASSWORD).unwrap();
    let answer =
        world.request(&format!("POST /hosts/{name}"), &format!("Authorization: Bearer {token}\r\n"), query);
    (status(&answer), answer)
}

#[test]
fn another_host_is_looked_at_and_not_changed() {
    let other = with_look_password();
    other
        .daemon
        .tell(serde_json::from_str(include_str!("../../../frontdesk/src/status/sample.json")).unwrap());
    let (name, fingerprint) = (other.address(), other.fingerprint);
    let world = World::with(false, |folder| {
        let mut hosts = Folder::new(folder).other_hosts().unwrap();
        hosts.remember_password(&name, fingerprint, LOOK_PASSWORD.to_owned()).unwrap();
    });
    let name = name.to_string();
    let body = "{\"status\":{}}";
    assert_eq!(status(&world.request(&format!("POST /hosts/{name}"), "", body)), 401);
    let (code, answer) = of_other(&world, &name, body);
    assert!(code == 200 && answer.contains("\"alice\""), "{answer}");
    let (code, answer) = of_other(&world, &name, "{\"status\":{\"vm\":\"bob\"}}");
    assert!(code == 200 && !answer.contains("\"alice\""), "{answer}");
    let reserve = "{\"reserve\":{\"target\":\"vm:alice\",\"period_ns\":10000000,\"slice_ns\":2000000}}";
    assert_eq!(of_other(&world, &name, reserve).0, 403);
    assert_eq!(of_other(&world, &name, "{\"record\":{}}").0, 403);
    assert_eq!(of_other(&world, "other.example:9742", body).0, 404);
    let why = of_other(&world, &format!("{name}/why"), "{\"status\":{\"vm\":\"bob\"}}");
    assert!(why.0 == 200 && why.1.ends_with("{\"why\":[\"bob of 1 VMs\"]}"), "{}", why.1);
    assert!(other.daemon.asked().is_empty() && world.daemon.asked().is_empty());
    drop(other);
    let (code, answer) = of_other(&world, &name, body);
    assert!(code == 503 && answer.contains("cannot connect"), "{answer}");
}

/// A wrong password is not tried again and again: it would keep others at this address from logging in there.
#[test]
fn another_host_that_does_not_let_us_in_is_left_alone() {
    let other = World::new();
    let (name, fingerprint) = (other.address(), other.fingerprint);
    let world = World::with(false, |folder| {
        let mut hosts = Folder::new(folder).other_hosts().unwrap();
        hosts.remember_password(&name, fingerprint, LOOK_PASSWORD.to_owned()).unwrap();
    });
    for _ in 0..10 {
        let (code, answer) = of_other(&world, &name.to_string(), "{\"status\":{}}");
        assert!(code == 503 && answer.contains("the password is wrong"), "{answer}");
    }
    other.client().log_in(PASSWORD).expect("nobody has used up the tries");
}

#[test]
fn a_server_that_is_not_set_up_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = ServerConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        folder: Folder::new(folder.path()),
        socket: folder.path().join("none.sock"),
        require_client_certificate: false,
        explain: |_, _| Vec::new(),
    };
    let error = Server::start(&config).unwrap_err().to_string();
    assert!(error.contains("not set up"), "{error}");
    config.folder.set_up(PASSWORD, &[]).unwrap();
    config.require_client_certificate = true;
    let error = Server::start(&config).unwrap_err().to_string();
    assert!(error.contains("clients.pem"), "{error}");
}

#[test]
fn a_daemon_that_is_not_there_is_told_apart() {
    let mut world = World::new();
    let mut client = world.user();
    world.daemon = FakeDaemon::start();
    let RemoteError::Refused { refusal, .. } = client.ask(&Query::Targets {}).unwrap_err() else { panic!() };
    assert_eq!(refusal.kind, RefusalKind::Unavailable);
    assert!(refusal.message.contains("daemon does not answer"), "{refusal}");
}

#[test]
fn the_page_is_served_and_logs_in_by_a_cookie() {
    let world = World::new();
    let page = world.request("GET /", "", "");
    assert_eq!(status(&page), 200);
    let head = page.to_lowercase();
    assert!(head.contains("content-security-policy: default-src 'none'; script-src 'self'"), "{head}");
    assert!(!page.contains("<script>") && !page.contains("style=\""), "nothing inline");
    assert!(!page.contains("http://") && !page.contains("https://"), "nothing from elsewhere");
    let answer = world.request("POST /session", "", &format!("{{\"password\":\"{PASSWORD}\"}}"));
    assert_eq!(status(&answer), 204);
    let cookie = answer.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    for attribute in ["__Host-", "; Path=/", "; Secure", "; HttpOnly", "; SameSite=Strict"] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    let cookie = format!("Cookie: a=b; {}\r\n", cookie.split(';').next().unwrap());
    let ask = |more: &str| world.request("POST /api", &format!("{cookie}{more}"), "{\"reservations\":{}}");
    assert_eq!(status(&ask("")), 200);
    assert_eq!(
        status(&ask(&format!("Origin: https://{}\r\nSec-Fetch-Site: same-origin\r\n", world.address))),
        200
    );
    for foreign in ["Origin: https://evil.example\r\n", "Origin: null\r\n", "Sec-Fetch-Site: cross-site\r\n"]
    {
        assert_eq!(status(&ask(foreign)), 403, "{foreign}");
    }
    assert_eq!(status(&world.request("DELETE /session", &cookie, "")), 204);
    assert_eq!(status(&ask("")), 401);
}
