//! The certificates of the webhook server, made here: an authority and a leaf that it signs. Keys live in this process only. When to
//! renew what is a function of the time; files and the network are elsewhere.
//!
//! A new authority is announced before anything is signed by it, so that the API server knows it when it is first shown.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::Error;
use super::ca_bundle::CaCertificate;

/// Clocks of other machines may be behind.
const SKEW: SignedDuration = SignedDuration::from_mins(60);
/// How long an authority is known before a certificate of it is served.
const ANNOUNCED: SignedDuration = SignedDuration::from_mins(1);

/// How long things are good.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifetimes {
    pub(crate) leaf: SignedDuration,
    pub(crate) authority: SignedDuration,
}

impl Lifetimes {
    pub(crate) fn new(leaf: Duration, authority: Duration) -> Lifetimes {
        let signed = |duration| SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
        Lifetimes {
            leaf: signed(leaf),
            authority: signed(authority),
        }
    }
}

/// What a server shows and knows.
#[derive(Debug)]
pub(crate) struct ServingCertificate {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
}

struct CertificateAuthority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    made: Timestamp,
    expires: Timestamp,
}

/// The authorities of this replica and when its leaf has to be renewed.
pub(crate) struct CertificateRotator {
    replica: String,
    hosts: Vec<String>,
    lifetimes: Lifetimes,
    current: CertificateAuthority,
    /// Announced and not yet used.
    next: Option<CertificateAuthority>,
    leaf_expires: Timestamp,
}

impl std::fmt::Debug for CertificateRotator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CertificateRotator")
            .field("leaf_expires", &self.leaf_expires)
            .finish_non_exhaustive()
    }
}

impl CertificateRotator {
    /// A new authority and the first leaf.
    pub(crate) fn new(
        replica: &str,
        hosts: Vec<String>,
        lifetimes: Lifetimes,
        now: Timestamp,
    ) -> Result<(CertificateRotator, ServingCertificate), Error> {
        let mut certificates = CertificateRotator {
            replica: replica.to_owned(),
            current: authority(replica, lifetimes.authority, now)?,
            hosts,
            lifetimes,
            next: None,
            leaf_expires: now,
        };
        let certificate = certificates.sign(now)?;
        Ok((certificates, certificate))
    }

    /// Renews what is due; a new leaf if there is one.
    pub(crate) fn step(&mut self, now: Timestamp) -> Result<Option<ServingCertificate>, Error> {
        if self.next.is_none() && left(self.current.expires, now) < self.lifetimes.leaf.saturating_mul(2) {
            self.next = Some(authority(&self.replica, self.lifetimes.authority, now)?);
        }
        let announced = |next: &mut CertificateAuthority| left(now, next.made) >= ANNOUNCED;
        if let Some(next) = self.next.take_if(announced) {
            self.current = next;
            return self.sign(now).map(Some);
        }
        // At two thirds of its life.
        if left(self.leaf_expires, now).saturating_mul(3) < self.lifetimes.leaf {
            return self.sign(now).map(Some);
        }
        Ok(None)
    }

    /// What belongs into the bundle.
    pub(crate) fn entries(&self) -> Vec<CaCertificate> {
        let entry = |authority: &CertificateAuthority| CaCertificate {
            identity: self.replica.clone(),
            expires: authority.expires,
            pem: authority.issuer.pem(),
        };
        std::iter::once(&self.current).chain(&self.next).map(entry).collect()
    }

    /// When the present leaf ends.
    pub(crate) fn leaf_expires(&self) -> Timestamp {
        self.leaf_expires
    }

    fn sign(&mut self, now: Timestamp) -> Result<ServingCertificate, Error> {
        let making = |error| Error::Certificate(format!("making a certificate: {error}"));
        let mut params = CertificateParams::new(self.hosts.clone()).map_err(making)?;
        let name = self.hosts.last().map_or("admission", String::as_str);
        // A common name has at most 64 characters; who looks at it at all looks at the alternative names first.
        params
            .distinguished_name
            .push(DnType::CommonName, name.chars().take(64).collect::<String>());
        self.leaf_expires = later(now, self.lifetimes.leaf).min(self.current.expires);
        params.not_before = point(earlier(now))?;
        params.not_after = point(self.leaf_expires)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(making)?;
        let certificate = params.signed_by(&key, &self.current.issuer).map_err(making)?;
        Ok(ServingCertificate {
            chain: vec![certificate.der().clone()],
            key: PrivateKeyDer::try_from(key.serialize_der()).map_err(|error| Error::Certificate(error.to_owned()))?,
        })
    }
}

/// Certificates and key from PEM.
pub(crate) fn from_pem(chain: &[u8], key: &[u8]) -> Result<ServingCertificate, Error> {
    let reading =
        |what: &str, error: rustls::pki_types::pem::Error| Error::Certificate(format!("reading {what}: {error}"));
    let chain: Result<Vec<CertificateDer<'static>>, _> = CertificateDer::pem_slice_iter(chain).collect();
    Ok(ServingCertificate {
        chain: chain.map_err(|error| reading("tls.crt", error))?,
        key: PrivateKeyDer::from_pem_slice(key).map_err(|error| reading("tls.key", error))?,
    })
}

fn authority(replica: &str, lifetime: SignedDuration, now: Timestamp) -> Result<CertificateAuthority, Error> {
    let making = |error| Error::Certificate(format!("making an authority: {error}"));
    let mut params = CertificateParams::default();
    let name = format!("kai-admission {replica} {}", now.as_second());
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, name.chars().take(64).collect::<String>());
    // It signs leaves and nothing below them.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    let expires = later(now, lifetime);
    params.not_before = point(earlier(now))?;
    params.not_after = point(expires)?;
    let key = KeyPair::generate().map_err(making)?;
    Ok(CertificateAuthority {
        issuer: CertifiedIssuer::self_signed(params, key).map_err(making)?,
        made: now,
        expires,
    })
}

fn left(until: Timestamp, now: Timestamp) -> SignedDuration {
    until.duration_since(now)
}

fn later(now: Timestamp, lifetime: SignedDuration) -> Timestamp {
    // Certificates know whole seconds.
    let end = now.saturating_add(lifetime).unwrap_or(Timestamp::MAX);
    Timestamp::from_second(end.as_second()).unwrap_or(end)
}

fn earlier(now: Timestamp) -> Timestamp {
    now.checked_sub(SKEW).unwrap_or(now)
}

fn point(time: Timestamp) -> Result<time::OffsetDateTime, Error> {
    time::OffsetDateTime::from_unix_timestamp(time.as_second())
        .map_err(|error| Error::Certificate(format!("a certificate until {time}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3600;

    fn at(hours: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + hours * HOUR).unwrap()
    }

    fn new() -> CertificateRotator {
        let lifetimes = Lifetimes::new(Duration::from_secs(24 * 3600), Duration::from_secs(168 * 3600));
        CertificateRotator::new("r", vec!["admission.kai-scheduler.svc".into()], lifetimes, at(0))
            .unwrap()
            .0
    }

    #[test]
    fn leaves_are_renewed_before_they_end() {
        let mut certificates = new();
        assert_eq!(certificates.leaf_expires(), at(24));
        assert!(certificates.step(at(15)).unwrap().is_none());
        assert!(certificates.step(at(17)).unwrap().is_some());
        assert_eq!(certificates.leaf_expires(), at(41));
        assert_eq!(certificates.entries().len(), 1);
    }

    #[test]
    fn a_new_authority_is_announced_before_it_signs() {
        let mut certificates = new();
        let old = certificates.entries();
        for hour in 0..=120 {
            certificates.step(at(hour)).unwrap();
        }
        assert_eq!(certificates.entries(), old);
        certificates.step(at(121)).unwrap();
        let both = certificates.entries();
        assert_eq!((both.len(), &both[0]), (2, &old[0]));
        assert!(
            certificates.step(at(121)).unwrap().is_none(),
            "not yet known to the API server"
        );
        assert!(certificates.step(at(122)).unwrap().is_some());
        assert_eq!(certificates.entries(), both[1..]);
        assert_eq!(certificates.leaf_expires(), at(146));
    }

    #[test]
    fn the_authority_outlives_its_leaves_at_all_times() {
        let mut certificates = new();
        for hour in 0..1000 {
            certificates.step(at(hour)).unwrap();
            assert!(
                certificates.leaf_expires() > at(hour) && certificates.leaf_expires() <= certificates.current.expires
            );
        }
    }

    #[test]
    fn what_is_no_certificate_is_an_error() {
        assert!(from_pem(b"x", b"y").is_err());
    }
}
