//! Answers of a collector (<https://opentelemetry.io/docs/specs/otlp/#otlphttp-response>).

use prost::Message;

use super::client::{Outcome, answer as plain_answer, shown};

/// `ExportProfilesServiceResponse`.
#[derive(Clone, PartialEq, Message)]
struct ExportResponse {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    rejected_profiles: i64,
    #[prost(string, tag = "2")]
    error_message: String,
}

/// `google.rpc.Status`, without its details.
#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(string, tag = "2")]
    message: String,
}

/// Classifies the answer to an accepted request. Profiles that it rejects must not be sent again.
pub(super) fn meaning(body: &[u8]) -> Outcome {
    let Ok(response) = ExportResponse::decode(body) else {
        return Outcome::Refused(
            "the answer is not OTLP: is it a collector that receives profiles?".to_owned(),
        );
    };
    let Some(partial) = response.partial_success else {
        return Outcome::Accepted;
    };
    let rejected = u64::try_from(partial.rejected_profiles).unwrap_or(0);
    match (rejected, partial.error_message.as_str()) {
        (0, "") => Outcome::Accepted,
        (_, "") => Outcome::Partly(rejected, "no reason given".to_owned()),
        (_, why) => Outcome::Partly(rejected, shown(why)),
    }
}

/// Returns true if a request with this status may be retried.
pub(super) fn is_temporary(status: u16) -> bool {
    matches!(status, 429 | 502..=504)
}

/// A refusal in one line.
pub(super) fn answer(status: u16, body: &[u8]) -> String {
    match Status::decode(body) {
        Ok(Status { message }) if !message.is_empty() => plain_answer(status, message.as_bytes()),
        Ok(_) | Err(_) => plain_answer(status, body),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Field 1, a message with a number in field 1 and a text in field 2, by protobuf's encoding.
    fn partial(rejected: u8, why: &str) -> Vec<u8> {
        let length = u8::try_from(why.len()).expect("short");
        let inner = [&[8, rejected, 0x12, length], why.as_bytes()].concat();
        let length = u8::try_from(inner.len()).expect("short");
        [&[0x0a, length], &inner[..]].concat()
    }

    /// An empty message accepts all, one with a partial success has the number of rejected profiles, and
    /// anything else is not OTLP.
    #[test]
    fn successes() {
        assert_eq!(meaning(b""), Outcome::Accepted);
        assert_eq!(meaning(&[0x0a, 0]), Outcome::Accepted);
        assert_eq!(
            meaning(&partial(2, "no\nroom")),
            Outcome::Partly(2, "no\\nroom".to_owned())
        );
        assert_eq!(
            meaning(&partial(0, "slow")),
            Outcome::Partly(0, "slow".to_owned())
        );
        let silent = Outcome::Partly(1, "no reason given".to_owned());
        assert_eq!(meaning(&partial(1, "")), silent);
        // A negative number of profiles.
        let odd = [&[0x0a, 11, 8], &[0xff; 9][..], &[1]].concat();
        assert_eq!(meaning(&odd), Outcome::Accepted);
        for odd in [&b"<html>"[..], b"{}", &[0x0a, 200]] {
            assert!(
                matches!(meaning(odd), Outcome::Refused(why) if why.contains("collector")),
                "{odd:?}"
            );
        }
    }

    /// The message of a status is shown, or the text of a body that is no status.
    #[test]
    fn failures() {
        assert_eq!(answer(400, &[8, 3, 0x12, 3, b'b', b'a', b'd']), "status 400: bad");
        assert_eq!(
            answer(404, b"404 page not found\n"),
            "status 404: 404 page not found"
        );
        assert_eq!(answer(503, b""), "status 503");
        let again: Vec<u16> = (400..600).filter(|&status| is_temporary(status)).collect();
        assert_eq!(again, [429, 502, 503, 504]);
    }
}
