//! Connections over QUIC
