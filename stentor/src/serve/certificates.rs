//! Certificates for `dev`: an authority of its own and a server certificate that it signed, kept in the data folder and
//! made anew when they are missing or about to expire. Production nodes bring their own.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use stentor_core::{Clock, Timestamp};

use super::data_dir::TLS_FOLDER;
use crate::config::Tls;
use crate::output::{Failure, parse_time, time_text};

/// How long a generated certificate is good for.
const VALID_FOR: Duration = Duration::from_secs(365 * 24 * 3_600);

/// One that expires sooner than this is made anew.
const RENEWED_BEFORE: Duration = Duration::from_secs(30 * 24 * 3_600);

/// Clocks of client and server may differ by this much.
const VALID_BEFORE_NOW: Duration = Duration::from_secs(24 * 3_600);

/// The files of the development certificates.
#[derive(Clone, Debug)]
pub(crate) struct DevCertificates {
    /// The authority's certificate, which clients trust.
    pub(crate) ca: PathBuf,
    /// The server's certificate.
    pub(crate) cert: PathBuf,
    /// The server's key.
    pub(crate) key: PathBuf,
    /// When they expire, as text: kept beside them so that nobody has to take a certificate apart.
    valid_until: PathBuf,
}

impl DevCertificates {
    /// The certificates in the data folder, made if there are none that are good for a while yet.
    pub(crate) fn prepare(data_dir: &Path, clock: &dyn Clock) -> Result<Self, Failure> {
        let folder = data_dir.join(TLS_FOLDER);
        let file = |name: &str| folder.join(name);
        let files = Self {
            ca: file("ca.pem"),
            cert: file("server.pem"),
            key: file("server.key"),
            valid_until: file("valid-until"),
        };
        if files.are_good(clock.now()) {
            return Ok(files);
        }
        let cannot = |what: &dyn std::fmt::Display| {
            Failure::new("certificate", format!("cannot make certificates in {}: {what}", folder.display()))
        };
        fs::create_dir_all(&folder).map_err(|error| cannot(&error))?;
        let made = make(clock.now()).map_err(|error| cannot(&error))?;
        files.write(&made, clock.now()).map_err(|error| cannot(&error))?;
        Ok(files)
    }

    /// For the listener.
    pub(crate) fn tls(&self) -> Tls {
        Tls { cert: self.cert.clone(), key: self.key.clone(), client_ca: None }
    }

    fn are_good(&self, now: Timestamp) -> bool {
        let until = fs::read_to_string(&self.valid_until).ok().and_then(|text| parse_time(text.trim()).ok());
        until.is_some_and(|until| until > now.after(RENEWED_BEFORE))
            && CertificateDer::from_pem_file(&self.ca).is_ok()
            && CertificateDer::from_pem_file(&self.cert).is_ok()
            && PrivateKeyDer::from_pem_file(&self.key).is_ok()
    }

    fn write(&self, made: &Made, now: Timestamp) -> io::Result<()> {
        fs::write(&self.ca, &made.ca)?;
        fs::write(&self.cert, &made.cert)?;
        // A key that was there with wider rights is replaced, not written into.
        match fs::remove_file(&self.key) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut key = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.key)?;
        key.write_all(made.key.as_bytes())?;
        // Last, so that a set that was interrupted half-way is made anew.
        fs::write(&self.valid_until, time_text(now.after(VALID_FOR)))
    }
}

struct Made {
    ca: String,
    cert: String,
    key: String,
}

/// An authority whose key is thrown away at once, and one server certificate for this machine's own names.
fn make(now: Timestamp) -> Result<Made, rcgen::Error> {
    let validity = |params: &mut CertificateParams| {
        params.not_before = (UNIX_EPOCH + Duration::from_micros(now.before(VALID_BEFORE_NOW).0)).into();
        params.not_after = (UNIX_EPOCH + Duration::from_micros(now.after(VALID_FOR).0)).into();
    };
    let mut authority = CertificateParams::default();
    validity(&mut authority);
    authority.distinguished_name.push(DnType::CommonName, "stentor development authority");
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;

    let mut server = CertificateParams::new(vec!["localhost".to_owned()])?;
    validity(&mut server);
    server.distinguished_name.push(DnType::CommonName, "stentor development broker");
    server.subject_alt_names.push(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    server.subject_alt_names.push(SanType::IpAddress(IpAddr::V6(Ipv6Addr::LOCALHOST)));
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    server.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    let cert = server.signed_by(&key, &authority)?;
    Ok(Made { ca: authority.pem(), cert: cert.pem(), key: key.serialize_pem() })
}

#[cfg(test)]
mod tests {
    use stentor_core::clock::ManualClock;

    use super::*;

    #[test]
    fn certificates_are_kept_while_they_are_good_and_made_anew_before_they_expire() {
        let temp = tempfile::tempdir().unwrap();
        let clock = ManualClock::new(Timestamp(1_700_000_000_000_000));
        let read = || {
            let files = DevCertificates::prepare(temp.path(), &clock).unwrap();
            fs::read(files.cert).unwrap()
        };
        let first = read();
        assert_eq!(read(), first);
        clock.advance(VALID_FOR - RENEWED_BEFORE - Duration::from_secs(1));
        assert_eq!(read(), first);
        clock.advance(Duration::from_secs(2));
        assert_ne!(read(), first);
    }

    #[test]
    fn a_damaged_set_is_made_anew_and_the_key_is_for_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let temp = tempfile::tempdir().unwrap();
        let clock = ManualClock::new(Timestamp(1_700_000_000_000_000));
        let files = DevCertificates::prepare(temp.path(), &clock).unwrap();
        fs::write(&files.key, "not a key").unwrap();
        fs::set_permissions(&files.key, fs::Permissions::from_mode(0o644)).unwrap();
        let files = DevCertificates::prepare(temp.path(), &clock).unwrap();
        assert!(PrivateKeyDer::from_pem_file(&files.key).is_ok());
        assert_eq!(fs::metadata(&files.key).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
