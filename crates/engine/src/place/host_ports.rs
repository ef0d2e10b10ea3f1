//! Host ports that a pod requests, indexed by number to be compared with the ports in use on a node.

use rustc_hash::FxHashMap;

use crate::model::HostPort;
use crate::steps;

/// Ports of one pod by number. Pairwise comparison would be quadratic for two pods with many ports on one node.
#[derive(Debug, Default)]
pub(crate) struct HostPorts<'a>(FxHashMap<u16, Vec<&'a HostPort>>);

impl<'a> HostPorts<'a> {
    pub(crate) fn new(ports: &'a [HostPort]) -> HostPorts<'a> {
        let mut by_number: FxHashMap<u16, Vec<&HostPort>> = FxHashMap::default();
        for port in ports {
            by_number.entry(port.port).or_default().push(port);
        }
        HostPorts(by_number)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one of the ports conflicts with a port that is in use on the node.
    pub(crate) fn conflict_with(&self, in_use: &HostPort) -> bool {
        steps::count(1);
        let same_number = self.0.get(&in_use.port);
        same_number.is_some_and(|ports| ports.iter().any(|port| port.conflicts(in_use)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(ip: &str, protocol: &str, port: u16) -> HostPort {
        HostPort {
            ip: ip.into(),
            protocol: protocol.into(),
            port,
        }
    }

    #[test]
    fn a_port_is_found_by_number_protocol_and_address() {
        let own = [port("10.0.0.1", "TCP", 80), port("", "UDP", 80), port("", "TCP", 443)];
        let ports = HostPorts::new(&own);
        for (taken, expect) in [
            (port("10.0.0.1", "TCP", 80), true),
            (port("", "TCP", 80), true),
            (port("10.0.0.2", "TCP", 80), false),
            (port("10.0.0.2", "UDP", 80), true),
            (port("10.0.0.2", "TCP", 443), true),
            (port("", "SCTP", 443), false),
            (port("", "TCP", 8080), false),
        ] {
            assert_eq!(ports.conflict_with(&taken), expect, "{taken:?}");
        }
    }
}
