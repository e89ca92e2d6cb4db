//! What is known of the peer once the handshake is done.

use quinn::crypto::rustls::HandshakeData;
use rustls_pki_types::CertificateDer;
use stentor_core::transport::{CloseCode, PeerInfo};
use webpki::EndEntityCert;

use crate::{error, tls};

/// Who the peer is; `None`, with the connection closed, when it does not speak the protocol. TLS refuses a peer that
/// offers another one; this is for one that offers none.
pub(crate) fn peer(connection: &quinn::Connection) -> Option<PeerInfo> {
    let data = connection.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
    if data.and_then(|data| data.protocol).as_deref() != Some(tls::ALPN) {
        connection.close(error::varint(CloseCode::PROTOCOL), b"the protocol is stentor/1");
        return None;
    }
    Some(PeerInfo { address: connection.remote_address().to_string(), certificate_subject: subject(connection) })
}

/// The first DNS name of the peer's verified certificate, or the certificate's fingerprint if it has none.
fn subject(connection: &quinn::Connection) -> Option<String> {
    let chain = connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    let own = chain.first()?;
    let name = EndEntityCert::try_from(own).ok().and_then(|cert| cert.valid_dns_names().next().map(str::to_owned));
    Some(name.unwrap_or_else(|| tls::fingerprint(own)))
}
