//! Compression of the records of a batch, as one block.

use std::fmt;
use std::io::Read;
use std::str::FromStr;

use bytes::Bytes;
use thiserror::Error;

use super::BatchError;

/// How the records of a batch are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// An LZ4 block: fast.
    Lz4,
    /// A zstd frame: small.
    Zstd,
}

/// The level at which zstd gives most of what it can for little time; its own default.
const ZSTD_LEVEL: i32 = 3;

/// The window that a zstd frame may have in any case, 2 MiB: an encoder that does not know the size ahead takes it at the
/// usual levels, also for less.
const ZSTD_WINDOW_LOG_MIN: u32 = 21;

/// The largest window that is ever set aside, 128 MiB, as the decoder has it by itself.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

/// An LZ4 block cannot grow by more than this factor (each byte of a run's length stands for at most 255), so a claim
/// beyond it is a lie and no memory is taken for it.
const LZ4_GROWTH_MAX: u64 = 255;

impl Compression {
    /// The word for it in configuration and output.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    pub(super) const fn bits(self) -> u16 {
        match self {
            Self::None => 0,
            Self::Lz4 => 1,
            Self::Zstd => 2,
        }
    }

    pub(super) const fn from_bits(bits: u16) -> Option<Self> {
        match bits {
            0 => Some(Self::None),
            1 => Some(Self::Lz4),
            2 => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Compresses `raw`; none when that would not make it smaller.
    pub(super) fn compress(self, raw: &[u8]) -> Option<Bytes> {
        let compressed = match self {
            Self::None => return None,
            Self::Lz4 => lz4_flex::block::compress(raw),
            Self::Zstd => zstd::bulk::compress(raw, ZSTD_LEVEL).ok()?,
        };
        (compressed.len() < raw.len()).then(|| compressed.into())
    }

    /// Uncompresses what should come to exactly `raw_bytes`.
    pub(super) fn decompress(self, payload: &Bytes, raw_bytes: u32, raw_bytes_max: u32) -> Result<Bytes, BatchError> {
        if raw_bytes > raw_bytes_max {
            return Err(BatchError::TooLarge { bytes: raw_bytes, bytes_max: raw_bytes_max });
        }
        let raw: Bytes = match self {
            Self::None => payload.clone(),
            Self::Lz4 => {
                if u64::from(raw_bytes) > (payload.len() as u64).saturating_mul(LZ4_GROWTH_MAX) {
                    return Err(BatchError::Decompress("the block is too short for what it claims".into()));
                }
                lz4_flex::block::decompress(payload, raw_bytes as usize)
                    .map_err(|error| BatchError::Decompress(error.to_string()))?
                    .into()
            }
            Self::Zstd => {
                // Read as it comes, one byte further than allowed: the memory taken follows what was really there.
                let failed = |error: std::io::Error| BatchError::Decompress(error.to_string());
                let mut decoder = zstd::stream::read::Decoder::with_buffer(payload.as_ref()).map_err(failed)?;
                // A frame's header may ask for a window of any size, whatever there is behind it.
                let window_log = u32::BITS - raw_bytes.saturating_sub(1).leading_zeros();
                decoder.window_log_max(window_log.clamp(ZSTD_WINDOW_LOG_MIN, ZSTD_WINDOW_LOG_MAX)).map_err(failed)?;
                let mut raw = Vec::new();
                decoder.take(u64::from(raw_bytes) + 1).read_to_end(&mut raw).map_err(failed)?;
                raw.into()
            }
        };
        if raw.len() != raw_bytes as usize {
            return Err(BatchError::Decompress("the block does not come to what the header says".into()));
        }
        Ok(raw)
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The word names no compression.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is no compression: use none, lz4 or zstd")]
pub struct ParseCompressionError(String);

impl FromStr for Compression {
    type Err = ParseCompressionError;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        [Self::None, Self::Lz4, Self::Zstd]
            .into_iter()
            .find(|compression| compression.as_str() == word)
            .ok_or_else(|| ParseCompressionError(word.to_owned()))
    }
}
