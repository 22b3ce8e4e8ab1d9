//! Clients as they may be: nothing they do reaches the daemon, or keeps others from being served.

use super::*;
use frontdesk_control_protocol::Query;

fn is_well(world: &World) {
    world.user().ask(&Query::Reservations {}).unwrap();
    assert!(world.daemon.asked().is_empty());
}

#[test]
fn garbage_is_refused() {
    let world = World::new();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\x16\x03\x01\x00\x05hello", &[0xff; 9000]] {
        let mut stream = world.connect();
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP"), "nothing is served without TLS");
    }
    for (bytes, expected) in [
        ("hello\r\n\r\n".to_owned(), 400),
        ("\0\0\0\0\r\n\r\n".to_owned(), 400),
        (format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(20_000)), 431),
        (format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(100)), 431),
        (format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(20_000)), 431),
    ] {
        let answer = world.say(&bytes);
        // What was too long was not read to its end, and so the answer may be lost on its way.
        assert!(answer.is_empty() || status(&answer) == expected, "{bytes:.30}: {answer}");
    }
    for (line, expected) in [
        ("GET /none", 404),
        ("GET /../etc/passwd", 404),
        ("GET /api", 405),
        ("POST /", 405),
        ("GET /token", 405),
    ] {
        assert_eq!(status(&world.request(line, "", "")), expected, "{line}");
    }
    is_well(&world);
}

#[test]
fn requests_that_are_none_are_refused() {
    let world = World::new();
    let token = world.client().log_in(PASSWORD).unwrap();
    let bearer = format!("Authorization: Bearer {token}\r\n");
    for (body, expected) in [
        (String::new(), 400),
        ("hello".to_owned(), 400),
        ("{\"reserve\":{\"target\":\"vm:a\",\"period_ns\":-1,\"slice_ns\":1}}".to_owned(), 400),
        ("{\"reservations\":{}} {}".to_owned(), 400),
        ("[".repeat(4000), 400),
        ("{\"record\":{}}".to_owned(), 400),
        (format!("{{\"release\":{{\"target\":\"vm:{}\"}}}}", "x".repeat(300)), 400),
        (format!("{{\"release\":{{\"target\":\"vm:{}\"}}}}", "x".repeat(5000)), 413),
        ("{\"reservations\":{}}".to_owned(), 200),
    ] {
        assert_eq!(status(&world.request("POST /api", &bearer, &body)), expected, "{body:.40}");
    }
    let form = format!("{bearer}Content-Type: application/x-www-form-urlencoded\r\n");
    let body = "{\"reservations\":{}}";
    let answer = world.say(format!(
        "POST /api HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n{form}\r\n{body}",
        body.len()
    ));
    assert_eq!(status(&answer), 415);
    for wrong in ["{\"password\":7}", "{}", "{\"password\":\"x\",\"user\":\"root\"}"] {
        assert_eq!(status(&world.request("POST /token", "", wrong)), 400, "{wrong}");
    }
    for wrong in
        ["Authorization: Bearer \r\n", "Authorization: Basic cm9vdDo=\r\n", "Cookie: __Host-frontdesk=\r\n"]
    {
        assert_eq!(status(&world.request("POST /api", wrong, body)), 401, "{wrong}");
    }
    is_well(&world);
}

#[test]
fn who_guesses_is_locked_out() {
    let world = World::new();
    let mut user = world.user();
    let mut guesser = world.client();
    // The lockout becomes longer than any pause between two guesses.
    let mut reasons = (0..20).map(|guess| not_logged_in(guesser.log_in(&format!("password {guess}"))));
    assert_eq!(reasons.next().unwrap(), "the password is wrong");
    assert!(reasons.any(|reason| reason.starts_with("too many wrong passwords; try again in")));
    user.ask(&Query::Reservations {}).expect("who is in stays in");
}

#[test]
fn tries_at_once_count_as_well() {
    let world = World::new();
    let begin = std::time::Instant::now();
    let right = std::thread::scope(|scope| {
        let tries: Vec<_> = (0..8)
            .map(|index| {
                let world = &world;
                scope.spawn(move || not_logged_in(world.client().log_in(&format!("password {index}"))))
            })
            .collect();
        let reasons = tries.into_iter().map(|one| one.join().unwrap());
        reasons.filter(|reason| reason == "the password is wrong").count()
    });
    // Four, and one more after each lockout that was over by then: of 2 s, 4 s, and so on. Mostly none was.
    let lockouts = (begin.elapsed().as_secs() / 2 + 1).ilog2() as usize;
    assert!(right <= 4 + lockouts, "{right} passwords were looked at, {lockouts} lockouts were over");
}

#[test]
fn a_flood_is_held_back() {
    let world = World::new();
    let token = world.client().log_in(PASSWORD).unwrap();
    let mut client = world.tls();
    let body = "{\"reservations\":{}}";
    let request = format!(
        "POST /api HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n\
         {body}",
        body.len()
    );
    let mut seen = std::collections::BTreeSet::new();
    let mut pending = Vec::new();
    // More at a time than there may be at once, so that it does not matter how fast a client has its answers.
    const AT_ONCE: usize = 400;
    for _ in 0..100 {
        client.write_all(request.repeat(AT_ONCE).as_bytes()).unwrap();
        for _ in 0..AT_ONCE {
            let (status, rest) = read_answer(&mut client, std::mem::take(&mut pending));
            pending = rest;
            seen.insert(status);
        }
        if seen.contains(&429) {
            break;
        }
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [200, 429]);
}

/// The status of one answer, and what was read beyond it.
fn read_answer(stream: &mut impl Read, mut bytes: Vec<u8>) -> (u16, Vec<u8>) {
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.unwrap().parse().unwrap();
            if body.len() >= length {
                return (status(head), bytes.split_off(head.len() + 4 + length));
            }
        }
        let mut piece = [0; 4096];
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "the server hung up");
        bytes.extend_from_slice(&piece[..count]);
    }
}

/// As many connections as an address may have, none of which says anything: the next ones are hung up on,
/// until the silent ones are.
#[test]
fn connections_that_stall_are_dropped() {
    let world = World::new();
    let silent: Vec<TcpStream> = (0..16).map(|_| world.connect()).collect();
    let mut one_too_many = world.connect();
    assert!(matches!(one_too_many.read(&mut [0; 1]), Ok(0) | Err(_)), "hung up on");
    for mut stream in silent {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    }
    is_well(&world);
}

#[test]
fn requests_that_never_end_are_dropped() {
    let world = World::new();
    let mut head = world.tls();
    head.write_all(b"POST /api HTTP/1.1\r\nHost:").unwrap();
    let body = std::thread::scope(|scope| {
        let body = scope.spawn(|| {
            world.say("POST /token HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n{")
        });
        let mut rest = String::new();
        let _ = head.read_to_string(&mut rest);
        assert!(rest.is_empty() || status(&rest) == 408, "{rest}");
        body.join().unwrap()
    });
    assert_eq!(status(&body), 408);
    is_well(&world);
}

/// Those who asked for it have hung up, and its threads go on; nobody else waits for them.
#[test]
fn another_host_that_says_nothing_holds_nobody_up() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let name: Address = silent.local_addr().unwrap().to_string().parse().unwrap();
    let fingerprint = World::new().fingerprint;
    let world = World::with(false, |folder| {
        let mut hosts = Folder::new(folder).other_hosts().unwrap();
        hosts.remember_password(&name, fingerprint, "battery staple".to_owned()).unwrap();
    });
    let token = world.client().log_in(PASSWORD).unwrap();
    let body = "{\"status\":{}}";
    let request = format!(
        "POST /hosts/{name} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Authorization: Bearer {token}\r\n\r\n{body}",
        body.len()
    );
    for _ in 0..20 {
        world.tls().write_all(request.as_bytes()).unwrap();
    }
    let bearer = format!("Authorization: Bearer {token}\r\n");
    let answer = world.request(&format!("POST /hosts/{name}"), &bearer, body);
    assert!(status(&answer) == 503 && answer.contains("has not answered yet"), "{answer}");
    is_well(&world);
}
