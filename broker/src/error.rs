//! What the engine's errors are on the wire: the one place where they get a code.

use stentor_core::NameError;
use stentor_core::batch::BatchError;
use stentor_core::storage::StorageError;
use stentor_protocol::ErrorCode;
pub(crate) use stentor_protocol::error::refusal;
use stentor_protocol::wire;

use crate::filter::FilterError;
use crate::settings::SettingError;

/// A refusal with advice.
pub(crate) fn advise(code: ErrorCode, message: impl Into<String>, hint: &str) -> wire::Error {
    wire::Error { hint: hint.to_owned(), ..refusal(code, message) }
}

/// A backend refused: what was asked for was not done.
pub(crate) fn refused_by_storage(error: &StorageError) -> wire::Error {
    let message = error.to_string();
    match error {
        StorageError::Deposed { .. } => refusal(ErrorCode::Deposed, message),
        StorageError::StorageFull(_) => {
            advise(ErrorCode::StorageFull, message, "consume or expire what is stored, or give the storage more room")
        }
        StorageError::TooLarge { .. } => refusal(ErrorCode::MessageTooLarge, message),
        StorageError::Trimmed { .. } => refusal(ErrorCode::OffsetOutOfRange, message),
        StorageError::Corrupt { .. } | StorageError::Damaged(_) => {
            advise(ErrorCode::Corrupt, message, "run `stentor verify` on the stopped node's data folder")
        }
        StorageError::Unsupported(_) => refusal(ErrorCode::DurabilityUnsupported, message),
        StorageError::Invalid(_) => refusal(ErrorCode::Invalid, message),
        StorageError::Poisoned(_) => {
            advise(ErrorCode::Unavailable, message, "restart the node once its disk is sound again")
        }
        StorageError::Locked(_) | StorageError::Closed => refusal(ErrorCode::Unavailable, message),
        _ => refusal(ErrorCode::StorageFailed, message),
    }
}

/// A change was taken and its receipt failed: whether it was kept is not known.
pub(crate) fn outcome_unknown(error: &StorageError) -> wire::Error {
    advise(
        ErrorCode::StorageFailed,
        format!("whether it was stored is not known: {error}"),
        "restart the node once its disk is sound again; what was stored will be there",
    )
}

/// The node goes down.
pub(crate) fn shutting_down() -> wire::Error {
    advise(ErrorCode::ShuttingDown, "the node is shutting down", "connect to another node, or again later")
}

/// The task that should answer is gone, which happens only when the node goes down.
pub(crate) fn gone<E>(_: E) -> wire::Error {
    shutting_down()
}

pub(crate) fn invalid_name(error: &NameError) -> wire::Error {
    refusal(ErrorCode::Invalid, error.to_string())
}

pub(crate) fn invalid_setting(error: &SettingError) -> wire::Error {
    let code = if error.key() == "durability" { ErrorCode::DurabilityUnsupported } else { ErrorCode::Invalid };
    refusal(code, error.to_string())
}

pub(crate) fn invalid_filter(error: &FilterError) -> wire::Error {
    advise(ErrorCode::FilterInvalid, error.to_string(), "filters look like: tag = 'paid' AND region IN ('eu', 'us')")
}

pub(crate) fn bad_batch(error: &BatchError) -> wire::Error {
    let code = match error {
        BatchError::MessageTooLarge { .. } | BatchError::TooLarge { .. } => ErrorCode::MessageTooLarge,
        _ => ErrorCode::BatchMalformed,
    };
    refusal(code, error.to_string())
}

pub(crate) fn topic_not_found(name: &str) -> wire::Error {
    advise(
        ErrorCode::TopicNotFound,
        format!("there is no topic `{}`", name.escape_debug()),
        "create it with `stentor topic create`, or set `auto_create`",
    )
}

pub(crate) fn group_not_found(topic: &str, group: &str) -> wire::Error {
    refusal(ErrorCode::GroupNotFound, format!("topic `{topic}` has no group `{}`", group.escape_debug()))
}

pub(crate) fn partition_not_found(topic: &str, partition: u32) -> wire::Error {
    refusal(ErrorCode::PartitionNotFound, format!("topic `{topic}` has no partition {partition}"))
}
