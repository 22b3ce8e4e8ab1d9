//! What is served: the page, logging in and out, the daemon's protocol at `/api`, and what it told in words.

#![allow(clippy::result_large_err)] // What goes wrong is an answer here, and moved once.

use crate::answers::{Explain, LoginToken, SessionInfo, Why};
use crate::limits::{Bucket, Limits, Peer, Wait};
use crate::others::OtherHosts;
use crate::password::{MAX_PASSWORD_BYTES, Passwords};
use crate::sessions::{Holder, Right, Sessions};
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Extension, Path, Request, State};
use axum::http::StatusCode;
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use frontdesk_control_protocol::{
    self as control, Answer, ClientError, MAX_QUERY_BYTES, Query, Refusal, RefusalKind,
};
use serde::Deserialize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// From a request's head to its answer.
const DEADLINE: Duration = Duration::from_secs(10);
/// Requests to the daemon at once. It serves 16 clients, and not all of them are ours.
const ASKING: usize = 8;
/// `__Host-`: only over TLS, only from this very host, for all of it.
const COOKIE: &str = "__Host-frontdesk";

/// The page. Nothing in it comes from elsewhere, and the browser is told so.
const PAGE: [(&str, &str, &str); 4] = [
    ("/", "text/html; charset=utf-8", include_str!("page/page.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("page/page.css")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("page/page.js")),
    ("/host.js", "text/javascript; charset=utf-8", include_str!("page/host.js")),
];
const HEADERS: [(HeaderName, &str); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectedClient {
    pub(crate) peer: Peer,
    /// Whether it showed a certificate that stands for the password.
    pub(crate) certified: bool,
}

/// What all requests share.
pub(crate) struct ServerState {
    /// The daemon's control socket.
    socket: PathBuf,
    explain: Explain,
    others: OtherHosts,
    passwords: Passwords,
    limits: Mutex<Limits>,
    sessions: Mutex<Sessions>,
    asking: Arc<Semaphore>,
    /// A hash takes memory and a CPU: one at a time.
    hashing: Arc<Semaphore>,
    log: Mutex<Log>,
}

impl ServerState {
    pub(crate) fn new(
        socket: PathBuf,
        explain: Explain,
        others: OtherHosts,
        passwords: Passwords,
    ) -> ServerState {
        let now = Instant::now();
        ServerState {
            socket,
            explain,
            others,
            passwords,
            limits: Mutex::new(Limits::new(now)),
            sessions: Mutex::default(),
            asking: Arc::new(Semaphore::new(ASKING)),
            hashing: Arc::new(Semaphore::new(1)),
            log: Mutex::new(Log { bucket: Bucket::new(0.2, 20.0, now), silent: 0 }),
        }
    }

    /// Tells the operator, unless there is too much to tell.
    pub(crate) fn log(&self, what: std::fmt::Arguments<'_>) {
        lock(&self.log).write(what);
    }
}

/// No panic happens while a lock is held, so what is behind it is as it should be.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A log that nobody can flood.
struct Log {
    bucket: Bucket,
    /// Messages that were not written since the last one that was.
    silent: u64,
}

impl Log {
    fn write(&mut self, what: std::fmt::Arguments<'_>) {
        if self.bucket.take(Instant::now()).is_err() {
            self.silent += 1;
            return;
        }
        match std::mem::take(&mut self.silent) {
            0 => tracing::warn!("{what}"),
            silent => tracing::warn!("{what} (and {silent} more messages before)"),
        }
    }
}

/// All that is served, to one connection's client.
pub(crate) fn routes(shared: Arc<ServerState>) -> Router {
    let mut router = Router::new()
        .route("/api", post(ask))
        .route("/why", post(why))
        .route("/hosts/{name}", post(ask_other))
        .route("/hosts/{name}/why", post(why_elsewhere))
        .route("/session", get(session).post(begin_session).delete(end_session))
        .route("/token", post(make_token).delete(end_session));
    for (path, kind, text) in PAGE {
        router = router.route(path, get(move || async move { ([(header::CONTENT_TYPE, kind)], text) }));
    }
    router
        .fallback(|| async { refuse(StatusCode::NOT_FOUND, RefusalKind::Malformed, "there is nothing here") })
        .layer(DefaultBodyLimit::max(MAX_QUERY_BYTES))
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), admit))
        .with_state(shared)
}

/// What holds for every request: limits before, headers after.
async fn admit(
    State(shared): State<Arc<ServerState>>,
    Extension(client): Extension<ConnectedClient>,
    request: Request,
    next: Next,
) -> Response {
    let admitted = lock(&shared.limits).request(client.peer, Instant::now());
    let mut response = match admitted {
        Err(wait) => later(wait, "too many requests"),
        Ok(()) if !is_own(request.headers()) => {
            refuse(StatusCode::FORBIDDEN, RefusalKind::Forbidden, "the request is from another site's page")
        }
        Ok(()) => tokio::time::timeout(DEADLINE, next.run(request)).await.unwrap_or_else(|_| {
            let mut response = refuse(
                StatusCode::REQUEST_TIMEOUT,
                RefusalKind::Malformed,
                "the request did not come to its end",
            );
            // What is left of it is not waited for.
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            response
        }),
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Whether a request is from our own page, or from no page. Browsers tell, and the cookie's `SameSite` says
/// the same once more.
fn is_own(headers: &HeaderMap) -> bool {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let origin = text(header::ORIGIN).is_none_or(|origin| {
        origin.strip_prefix("https://").is_some_and(|host| text(header::HOST) == Some(host))
    });
    let site = text(HeaderName::from_static("sec-fetch-site"));
    origin && site.is_none_or(|site| matches!(site, "same-origin" | "none"))
}

/// `POST /api`: a request to the daemon and its answer, as on its socket.
async fn ask(
    State(shared): State<Arc<ServerState>>,
    Extension(client): Extension<ConnectedClient>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let right = match right(&shared, client, &headers) {
        Ok(right) => right,
        Err(response) => return response,
    };
    let query = match json(&headers, body).and_then(|body| Query::parse(&body).map_err(refused)) {
        Ok(Query::Record {}) => {
            let message = "a recording is made on the host itself, with `frontdesk record`";
            return refuse(StatusCode::BAD_REQUEST, RefusalKind::Malformed, message);
        }
        Ok(query) if query.changes() && right == Right::Look => {
            let message =
                "this login may only look in; log in with the password of those who may change something";
            return refuse(StatusCode::FORBIDDEN, RefusalKind::Forbidden, message);
        }
        Ok(query) => query,
        Err(response) => return response,
    };
    if query.changes() {
        // The daemon's own log knows only the server's user.
        tracing::info!("{} asks for {query:?}", client.peer);
    }
    ask_daemon(&shared, query).await.map_or_else(|refusal| refusal, |answer| Json(answer).into_response())
}

/// What this host's daemon answers.
async fn ask_daemon(shared: &ServerState, query: Query) -> Result<Answer, Response> {
    // Held by the thread, which goes on when whoever asked has hung up.
    let permit = Arc::clone(&shared.asking)
        .acquire_owned()
        .await
        .map_err(|_| refuse(StatusCode::SERVICE_UNAVAILABLE, RefusalKind::Busy, "the server is ending"))?;
    let socket = shared.socket.clone();
    let asked = tokio::task::spawn_blocking(move || {
        let answer = control::ask(&socket, &query);
        drop(permit);
        answer
    });
    match asked.await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(ClientError::Refused(refusal))) => Err(refused(refusal)),
        Ok(Err(error)) => {
            shared.log(format_args!("{error}"));
            Err(refuse(
                StatusCode::BAD_GATEWAY,
                RefusalKind::Unavailable,
                "the host's daemon does not answer; is it running?",
            ))
        }
        Err(_) => {
            Err(refuse(StatusCode::INTERNAL_SERVER_ERROR, RefusalKind::Unavailable, "the server failed"))
        }
    }
}

/// `POST /hosts/NAME`: the same to another host's daemon, which is only looked at.
async fn ask_other(
    State(shared): State<Arc<ServerState>>,
    Extension(client): Extension<ConnectedClient>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Answer>, Response> {
    right(&shared, client, &headers)?;
    let query = Query::parse(&json(&headers, body)?).map_err(refused)?;
    shared.others.ask(&name, query).await.map(Json).map_err(refused)
}

/// `POST /why`: why a VM was or was not put first of late, in words. Asked for as its status is.
async fn why(
    State(shared): State<Arc<ServerState>>,
    Extension(client): Extension<ConnectedClient>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Why>, Response> {
    right(&shared, client, &headers)?;
    let query = about_one_vm(&headers, body)?;
    explained(&shared, &ask_daemon(&shared, query).await?)
}

/// `POST /hosts/NAME/why`: the same of another host's VM.
async fn why_elsewhere(
    State(shared): State<Arc<ServerState>>,
    Extension(client): Extension<ConnectedClient>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Why>, Response> {
    right(&shared, client, &headers)?;
    let query = about_one_vm(&headers, body)?;
    explained(&shared, &shared.others.ask(&name, query).await.map_err(refused)?)
}

/// The request for the status of a VM, and no other.
fn about_one_vm(headers: &HeaderMap, body: Result<Bytes, BytesRejection>) -> Result<Query, Response> {
    let query = Query::parse(&json(headers, body)?).map_err(refused)?;
    if matches!(query, Query::Status { vm: Some(_) }) {
        return Ok(query);
    }
    let message = "this tells of one VM: ask as for its status, {\"status\":{\"vm\":\"NAME\"}}";
    Err(refuse(StatusCode::BAD_REQUEST, RefusalKind::Malformed, message))
}

/// What a daemon told of a VM, in words.
fn explained(shared: &ServerState, answer: &Answer) -> Result<Json<Why>, Response> {
    match answer {
        Answer::Status(status) if !status.vms.is_empty() => {
            Ok(Json(Why { why: (shared.explain)(status, &status.vms[0]) }))
        }
        _ => Err(refuse(StatusCode::BAD_GATEWAY, RefusalKind::Unavailable, "the daemon told of no VM")),
    }
}

/// `GET /session`.
async fn session(
    State(shared): State<Arc<ServerState>>,
    Extension(client): Extension<ConnectedClient>,
    headers: HeaderMap,
) -> Result<Json<SessionInfo>, Response> {
    let may_change = right(&shared, client, &headers)? == Right::Change;
    Ok(Json(SessionInfo { may_change, hosts: shared.others.names() }))
}

/// What whoever asks may do, if they have logged in.
fn right(shared: &ServerState, client: ConnectedClient, headers: &HeaderMap) -> Result<Right, Response> {
    if client.certified {
        return Ok(Right::Change);
    }
    let right = token(headers).and_then(|token| lock(&shared.sessions).right(token, Instant::now()));
    right.ok_or_else(|| refuse(StatusCode::UNAUTHORIZED, RefusalKind::Unauthenticated, "log in first"))
}

/// What is sent to log in.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Login {
    password: String,
}

/// `POST /session`: for the page; the token is in a cookie that scripts cannot read.
async fn begin_session(
    State(shared): State<Arc<ServerState>>,
    Extension(client): Extension<ConnectedClient>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<impl IntoResponse, Response> {
    let token = log_in(&shared, client.peer, &headers, body, Holder::Browser).await?;
    Ok((StatusCode::NO_CONTENT, cookie(&token, Holder::Browser.lifetime())))
}

/// `POST /token`: for the command.
async fn make_token(
    State(shared): State<Arc<ServerState>>,
    Extension(client): Extension<ConnectedClient>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<LoginToken>, Response> {
    let token = log_in(&shared, client.peer, &headers, body, Holder::Command).await?;
    Ok(Json(LoginToken { token }))
}

/// `DELETE /session`, `DELETE /token`: ends the session of whoever asks.
async fn end_session(State(shared): State<Arc<ServerState>>, headers: HeaderMap) -> Response {
    if let Some(token) = token(&headers) {
        lock(&shared.sessions).end(token);
    }
    (StatusCode::NO_CONTENT, cookie("", Duration::ZERO)).into_response()
}

/// Looks at a password, if its time has come.
async fn log_in(
    shared: &Arc<ServerState>,
    peer: Peer,
    headers: &HeaderMap,
    body: Result<Bytes, BytesRejection>,
    holder: Holder,
) -> Result<String, Response> {
    let body = json(headers, body)?;
    let login: Login = serde_json::from_slice(&body)
        .ok()
        .filter(|login: &Login| login.password.len() <= MAX_PASSWORD_BYTES)
        .ok_or_else(|| {
            refuse(StatusCode::BAD_REQUEST, RefusalKind::Malformed, "to log in, send {\"password\":\"...\"}")
        })?;
    let tried = lock(&shared.limits).guess(peer, Instant::now());
    if let Err(wait) = tried {
        shared.log(format_args!("{peer} tries passwords and has to wait for {} s", wait.as_secs() + 1));
        return Err(later(wait, "too many wrong passwords"));
    }
    let failed = || refuse(StatusCode::INTERNAL_SERVER_ERROR, RefusalKind::Unavailable, "the server failed");
    let right = {
        let permit = Arc::clone(&shared.hashing).acquire_owned().await.map_err(|_| failed())?;
        let passwords = shared.passwords.clone();
        let hashed = tokio::task::spawn_blocking(move || {
            let right = passwords.right_of(&login.password);
            drop(permit);
            right
        });
        hashed.await.map_err(|_| failed())?
    };
    let Some(right) = right else {
        shared.log(format_args!("{peer} gave a wrong password"));
        return Err(refuse(StatusCode::UNAUTHORIZED, RefusalKind::Unauthenticated, "the password is wrong"));
    };
    match right {
        Right::Change => lock(&shared.limits).right(peer),
        Right::Look => lock(&shared.limits).right_to_look(peer),
    }
    let token = lock(&shared.sessions).begin(holder, right, Instant::now()).ok_or_else(failed)?;
    tracing::info!("{peer} has logged in{}", if right == Right::Look { " to look" } else { "" });
    Ok(token)
}

/// The body, if it says that it is JSON, which no form of another site's page can.
fn json(headers: &HeaderMap, body: Result<Bytes, BytesRejection>) -> Result<Bytes, Response> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
    if kind != Some("application/json") {
        let message = "a request has the content type application/json";
        return Err(refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, RefusalKind::Malformed, message));
    }
    body.map_err(|rejection| {
        let message = match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => format!("a request has at most {MAX_QUERY_BYTES} bytes"),
            _ => "the request did not come to its end".to_owned(),
        };
        refuse(rejection.status(), RefusalKind::Malformed, message)
    })
}

/// The token in a request: that of a command, or that of the page's cookie.
fn token(headers: &HeaderMap) -> Option<&str> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let bearer = text(header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
    bearer.or_else(|| {
        let mut cookies = text(header::COOKIE)?.split(';').filter_map(|cookie| cookie.trim().split_once('='));
        cookies.find(|(name, _)| *name == COOKIE).map(|(_, value)| value)
    })
}

fn cookie(token: &str, lifetime: Duration) -> [(HeaderName, String); 1] {
    let seconds = lifetime.as_secs();
    let cookie = format!("{COOKIE}={token}; Path=/; Max-Age={seconds}; Secure; HttpOnly; SameSite=Strict");
    [(header::SET_COOKIE, cookie)]
}

fn refuse(status: StatusCode, kind: RefusalKind, message: impl Into<String>) -> Response {
    (status, Json(Answer::Refused(Refusal::new(kind, message)))).into_response()
}

fn later(wait: Wait, message: &str) -> Response {
    let seconds = wait.as_secs() + 1;
    let message = format!("{message}; try again in {seconds} s");
    let refusal = refuse(StatusCode::TOO_MANY_REQUESTS, RefusalKind::Busy, message);
    ([(header::RETRY_AFTER, seconds.to_string())], refusal).into_response()
}

/// A refusal of the daemon's.
fn refused(refusal: Refusal) -> Response {
    let status = match refusal.kind {
        RefusalKind::Malformed | RefusalKind::Invalid => StatusCode::BAD_REQUEST,
        RefusalKind::Unauthenticated => StatusCode::UNAUTHORIZED,
        RefusalKind::Forbidden => StatusCode::FORBIDDEN,
        RefusalKind::UnknownVm | RefusalKind::UnknownTarget => StatusCode::NOT_FOUND,
        RefusalKind::Infeasible
        | RefusalKind::NotReserved
        | RefusalKind::Overlapping
        | RefusalKind::Unsuitable => StatusCode::CONFLICT,
        RefusalKind::Busy | RefusalKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, Json(Answer::Refused(refusal))).into_response()
}
