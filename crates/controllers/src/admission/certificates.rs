//! The generated certificates of the webhook server: a certificate authority (CA) and the serving certificate that it signs. Private
//! keys stay in this process. Rotation is a function of the current time; this file touches neither files nor the network.
//!
//! A new CA is published in the CA bundle before it signs a serving certificate, so that the API server trusts the first one.

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

/// Clocks of other machines may be behind, so certificates are valid from this much earlier.
const SKEW: SignedDuration = SignedDuration::from_mins(60);
/// Time between the publication of a CA and the first serving certificate that it signs.
const PUBLISHED_BEFORE_USE: SignedDuration = SignedDuration::from_mins(1);

/// Lifetimes of the generated certificates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifetimes {
    pub(crate) serving: SignedDuration,
    pub(crate) ca: SignedDuration,
}

impl Lifetimes {
    pub(crate) fn new(serving: Duration, ca: Duration) -> Lifetimes {
        let signed = |duration| SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
        Lifetimes {
            serving: signed(serving),
            ca: signed(ca),
        }
    }
}

/// The certificate chain that the TLS server presents, and its private key.
#[derive(Debug)]
pub(crate) struct ServingCertificate {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
}

struct CertificateAuthority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    created: Timestamp,
    expires: Timestamp,
}

/// Owns the CAs of this replica and knows when to rotate them. The maintenance loop of the role calls `rotate`.
pub(crate) struct CertificateRotator {
    replica: String,
    hosts: Vec<String>,
    lifetimes: Lifetimes,
    current: CertificateAuthority,
    /// Published in the CA bundle, and not yet used for signing.
    next: Option<CertificateAuthority>,
    serving_expires: Timestamp,
}

impl std::fmt::Debug for CertificateRotator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CertificateRotator")
            .field("serving_expires", &self.serving_expires)
            .finish_non_exhaustive()
    }
}

impl CertificateRotator {
    /// Generates a CA and the first serving certificate.
    pub(crate) fn new(
        replica: &str,
        hosts: Vec<String>,
        lifetimes: Lifetimes,
        now: Timestamp,
    ) -> Result<(CertificateRotator, ServingCertificate), Error> {
        let mut rotator = CertificateRotator {
            replica: replica.to_owned(),
            current: generate_ca(replica, lifetimes.ca, now)?,
            hosts,
            lifetimes,
            next: None,
            serving_expires: now,
        };
        let certificate = rotator.sign(now)?;
        Ok((rotator, certificate))
    }

    /// Rotates what is due; returns a new serving certificate if there is one.
    pub(crate) fn rotate(&mut self, now: Timestamp) -> Result<Option<ServingCertificate>, Error> {
        if self.next.is_none() && time_left(self.current.expires, now) < self.lifetimes.serving.saturating_mul(2) {
            self.next = Some(generate_ca(&self.replica, self.lifetimes.ca, now)?);
        }
        let is_published = |next: &mut CertificateAuthority| time_left(now, next.created) >= PUBLISHED_BEFORE_USE;
        if let Some(next) = self.next.take_if(is_published) {
            self.current = next;
            return self.sign(now).map(Some);
        }
        // A serving certificate is renewed after two thirds of its lifetime.
        if time_left(self.serving_expires, now).saturating_mul(3) < self.lifetimes.serving {
            return self.sign(now).map(Some);
        }
        Ok(None)
    }

    /// The CA certificates that this replica adds to the CA bundle.
    pub(crate) fn ca_certificates(&self) -> Vec<CaCertificate> {
        let certificate = |authority: &CertificateAuthority| CaCertificate {
            identity: self.replica.clone(),
            expires: authority.expires,
            pem: authority.issuer.pem(),
        };
        std::iter::once(&self.current)
            .chain(&self.next)
            .map(certificate)
            .collect()
    }

    /// Expiry of the current serving certificate.
    pub(crate) fn serving_expires(&self) -> Timestamp {
        self.serving_expires
    }

    fn sign(&mut self, now: Timestamp) -> Result<ServingCertificate, Error> {
        let failed = |error| Error::Certificate(format!("generating a serving certificate: {error}"));
        let mut params = CertificateParams::new(self.hosts.clone()).map_err(failed)?;
        let name = self.hosts.last().map_or("admission", String::as_str);
        // A common name has at most 64 characters. Clients check the subject alternative names, not the common name.
        params
            .distinguished_name
            .push(DnType::CommonName, name.chars().take(64).collect::<String>());
        self.serving_expires = expiry(now, self.lifetimes.serving).min(self.current.expires);
        params.not_before = to_offset_date_time(valid_from(now))?;
        params.not_after = to_offset_date_time(self.serving_expires)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.signed_by(&key, &self.current.issuer).map_err(failed)?;
        Ok(ServingCertificate {
            chain: vec![certificate.der().clone()],
            key: PrivateKeyDer::try_from(key.serialize_der()).map_err(|error| Error::Certificate(error.to_owned()))?,
        })
    }
}

/// Reads a certificate chain and its private key from PEM.
pub(crate) fn from_pem(chain: &[u8], key: &[u8]) -> Result<ServingCertificate, Error> {
    let reading =
        |what: &str, error: rustls::pki_types::pem::Error| Error::Certificate(format!("reading {what}: {error}"));
    let chain: Result<Vec<CertificateDer<'static>>, _> = CertificateDer::pem_slice_iter(chain).collect();
    Ok(ServingCertificate {
        chain: chain.map_err(|error| reading("tls.crt", error))?,
        key: PrivateKeyDer::from_pem_slice(key).map_err(|error| reading("tls.key", error))?,
    })
}

fn generate_ca(replica: &str, lifetime: SignedDuration, now: Timestamp) -> Result<CertificateAuthority, Error> {
    let failed = |error| Error::Certificate(format!("generating a certificate authority: {error}"));
    let mut params = CertificateParams::default();
    let name = format!("kai-admission {replica} {}", now.as_second());
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, name.chars().take(64).collect::<String>());
    // The CA signs serving certificates and no intermediate CAs.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    let expires = expiry(now, lifetime);
    params.not_before = to_offset_date_time(valid_from(now))?;
    params.not_after = to_offset_date_time(expires)?;
    let key = KeyPair::generate().map_err(failed)?;
    Ok(CertificateAuthority {
        issuer: CertifiedIssuer::self_signed(params, key).map_err(failed)?,
        created: now,
        expires,
    })
}

fn time_left(until: Timestamp, now: Timestamp) -> SignedDuration {
    until.duration_since(now)
}

fn expiry(now: Timestamp, lifetime: SignedDuration) -> Timestamp {
    // Certificates have a precision of a second.
    let end = now.saturating_add(lifetime).unwrap_or(Timestamp::MAX);
    Timestamp::from_second(end.as_second()).unwrap_or(end)
}

fn valid_from(now: Timestamp) -> Timestamp {
    now.checked_sub(SKEW).unwrap_or(now)
}

fn to_offset_date_time(time: Timestamp) -> Result<time::OffsetDateTime, Error> {
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
        assert_eq!(certificates.serving_expires(), at(24));
        assert!(certificates.rotate(at(15)).unwrap().is_none());
        assert!(certificates.rotate(at(17)).unwrap().is_some());
        assert_eq!(certificates.serving_expires(), at(41));
        assert_eq!(certificates.ca_certificates().len(), 1);
    }

    #[test]
    fn a_new_authority_is_announced_before_it_signs() {
        let mut certificates = new();
        let old = certificates.ca_certificates();
        for hour in 0..=120 {
            certificates.rotate(at(hour)).unwrap();
        }
        assert_eq!(certificates.ca_certificates(), old);
        certificates.rotate(at(121)).unwrap();
        let both = certificates.ca_certificates();
        assert_eq!((both.len(), &both[0]), (2, &old[0]));
        assert!(
            certificates.rotate(at(121)).unwrap().is_none(),
            "not yet known to the API server"
        );
        assert!(certificates.rotate(at(122)).unwrap().is_some());
        assert_eq!(certificates.ca_certificates(), both[1..]);
        assert_eq!(certificates.serving_expires(), at(146));
    }

    #[test]
    fn the_authority_outlives_its_leaves_at_all_times() {
        let mut certificates = new();
        for hour in 0..1000 {
            certificates.rotate(at(hour)).unwrap();
            assert!(
                certificates.serving_expires() > at(hour)
                    && certificates.serving_expires() <= certificates.current.expires
            );
        }
    }

    #[test]
    fn what_is_no_certificate_is_an_error() {
        assert!(from_pem(b"x", b"y").is_err());
    }
}
