//! Addresses as people write them.

use std::net::SocketAddr;

use stentor_core::transport::TransportError;

/// Every address that `HOST:PORT` stands for.
pub(crate) async fn resolve(address: &str) -> Result<Vec<SocketAddr>, TransportError> {
    let refused = |reason: String| TransportError::Connect { address: address.to_owned(), reason };
    let found: Vec<_> = tokio::net::lookup_host(address)
        .await
        .map_err(|error| refused(format!("{error}; an address is written HOST:PORT")))?
        .collect();
    if found.is_empty() { Err(refused("the name has no address".to_owned())) } else { Ok(found) }
}

/// The host of `HOST:PORT`, as a certificate would name it: without the brackets of an IPv6 address.
pub(crate) fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::host;

    #[test]
    fn the_host_is_what_a_certificate_would_name() {
        assert_eq!(host("broker.example:7411"), "broker.example");
        assert_eq!(host("127.0.0.1:7411"), "127.0.0.1");
        assert_eq!(host("[::1]:7411"), "::1");
        assert_eq!(host("broker"), "broker");
    }
}
