//! Messages of the Model Context Protocol (<https://modelcontextprotocol.io/specification/2025-11-25>,
//! <https://www.jsonrpc.org/specification>): each line of input is answered by one line, or none.
//!
//! Clients of revisions up to 2025-11-25 begin with `initialize`. Those of 2026-07-28 name their revision in
//! each request, and can call `server/discover` to learn which revisions are supported.

use serde_json::{Map, Value, json};

use super::lines::MAX_BYTES;
use super::tools::{self, Reports};

/// Revisions with `initialize`, newest first. 2025-03-26 is left out: it requires servers to accept batches
/// of requests.
const REVISIONS: [&str; 3] = ["2025-11-25", "2025-06-18", "2024-11-05"];
/// Revision without `initialize`.
const STATELESS: &str = "2026-07-28";
/// Key in a request's `_meta` that names its revision.
const REVISION_KEY: &str = "io.modelcontextprotocol/protocolVersion";

const PARSE_ERROR: i64 = -32700;
const INVALID_REQUEST: i64 = -32600;
const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;
const UNSUPPORTED_REVISION: i64 = -32022;

const INSTRUCTIONS: &str = "Reports of memleak about memory that processes have allocated and not freed. Begin with `summary`. A `site` \
    is a calling stack that allocates; its number is the same in all reports of the same builds. Amounts are outstanding bytes and blocks, \
    without blocks too young to judge. Outstanding memory is not yet a leak: what grows from report to report (`diff`) may be one.";

/// Error of a request.
pub(super) struct Failure {
    code: i64,
    message: String,
    data: Option<Value>,
}

impl Failure {
    fn new(code: i64, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            data: None,
        }
    }
}

/// The state of a connection.
pub(super) struct Server<'a> {
    reports: &'a mut dyn Reports,
    is_initialized: bool,
}

/// Answer to a line that was skipped because it is too long.
pub(super) fn too_long() -> Value {
    let message = format!("request too long: the limit is {MAX_BYTES} bytes");
    failed(Value::Null, Failure::new(INVALID_REQUEST, message))
}

fn failed(id: Value, Failure { code, message, data }: Failure) -> Value {
    let mut error = json!({"code": code, "message": message});
    if let Some(data) = data {
        error["data"] = data;
    }
    json!({"jsonrpc": "2.0", "id": id, "error": error})
}

impl<'a> Server<'a> {
    pub(super) fn new(reports: &'a mut dyn Reports) -> Self {
        Self {
            reports,
            is_initialized: false,
        }
    }

    /// Answers a line. Returns `None` for notifications, and for responses, which are ignored: the server
    /// sends no requests.
    pub(super) fn answer(&mut self, line: &[u8]) -> Option<Value> {
        let message: Value = match serde_json::from_slice(line) {
            Ok(message) => message,
            Err(_) => return Some(failed(Value::Null, Failure::new(PARSE_ERROR, "not JSON"))),
        };
        let invalid = |id, why: &str| Some(failed(id, Failure::new(INVALID_REQUEST, why)));
        let Value::Object(mut message) = message else {
            return invalid(Value::Null, "not a request: send one object in each line");
        };
        let id = message.remove("id");
        let method = match (message.remove("method"), &id) {
            (Some(Value::String(method)), _) => method,
            (None, Some(_)) if message.contains_key("result") || message.contains_key("error") => {
                return None;
            }
            _ => return invalid(Value::Null, "not a request: it has no method"),
        };
        // A notification.
        let id = id?;
        if !matches!(id, Value::String(_) | Value::Number(_)) {
            return invalid(Value::Null, "the id of a request is a string or a number");
        }
        if message.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
            return invalid(id, "not JSON-RPC 2.0");
        }
        let params = match message.remove("params") {
            None => Map::new(),
            Some(Value::Object(params)) => params,
            Some(_) => {
                return Some(failed(
                    id,
                    Failure::new(INVALID_PARAMS, "`params` is not an object"),
                ));
            }
        };
        Some(match self.result(&method, params) {
            Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
            Err(failure) => failed(id, failure),
        })
    }

    fn result(&mut self, method: &str, mut params: Map<String, Value>) -> Result<Value, Failure> {
        let revision = params
            .remove("_meta")
            .and_then(|mut meta| Some(meta.get_mut(REVISION_KEY)?.take()));
        let is_stateless = match revision.as_ref() {
            None => false,
            Some(revision) if revision == STATELESS => true,
            Some(revision) => return Err(unsupported(revision)),
        };
        let mut result = match method {
            "initialize" => self.initialize(&params),
            "ping" => json!({}),
            "server/discover" => discovered(),
            "tools/list" | "tools/call" if !self.is_initialized && !is_stateless => {
                return Err(Failure::new(INVALID_REQUEST, "send `initialize` first"));
            }
            "tools/list" => json!({"tools": tools::list()}),
            "tools/call" => self.call(params)?,
            _ => {
                let message = format!("there is no method `{}`", tools::shortened(method));
                return Err(Failure::new(METHOD_NOT_FOUND, message));
            }
        };
        if is_stateless {
            result["resultType"] = json!("complete");
            if method != "tools/call" && method != "ping" {
                result["ttlMs"] = json!(0);
                result["cacheScope"] = json!("private");
            }
        }
        Ok(result)
    }

    fn initialize(&mut self, params: &Map<String, Value>) -> Value {
        self.is_initialized = true;
        let wanted = params.get("protocolVersion").and_then(Value::as_str);
        // A client that does not support this revision ends the connection.
        let revision = REVISIONS.into_iter().find(|&known| Some(known) == wanted);
        json!({
            "protocolVersion": revision.unwrap_or(REVISIONS[0]),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "memleak", "version": env!("CARGO_PKG_VERSION")},
            "instructions": INSTRUCTIONS,
        })
    }

    fn call(&mut self, mut params: Map<String, Value>) -> Result<Value, Failure> {
        let Some(Value::String(name)) = params.remove("name") else {
            return Err(Failure::new(INVALID_PARAMS, "`name` of a tool is missing"));
        };
        let arguments = match params.remove("arguments") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(arguments)) => arguments,
            Some(_) => return Err(Failure::new(INVALID_PARAMS, "`arguments` is not an object")),
        };
        let Some(answered) = tools::call(&name, &arguments, self.reports) else {
            let message = format!("there is no tool `{}`", tools::shortened(&name));
            return Err(Failure::new(INVALID_PARAMS, message));
        };
        // A tool's error is a result for the model that called it, not an error of the protocol.
        let (text, is_error) = match answered {
            Ok(text) => (text, false),
            Err(why) => (why, true),
        };
        Ok(json!({"content": [{"type": "text", "text": text}], "isError": is_error}))
    }
}

fn discovered() -> Value {
    json!({
        "supportedVersions": [STATELESS],
        "capabilities": {"tools": {}},
        "instructions": INSTRUCTIONS,
        "_meta": {
            "io.modelcontextprotocol/serverInfo": {"name": "memleak", "version": env!("CARGO_PKG_VERSION")},
        },
    })
}

fn unsupported(revision: &Value) -> Failure {
    let requested = tools::shortened(revision.as_str().unwrap_or_default());
    Failure {
        data: Some(json!({"supported": [STATELESS], "requested": requested})),
        ..Failure::new(
            UNSUPPORTED_REVISION,
            "this revision of the protocol is not supported",
        )
    }
}
