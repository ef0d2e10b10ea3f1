//! A process of `kai`: start, readiness, metrics, memory and CPU time. Dropping the value kills the process.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::time::Instant;

/// The longest wait for readiness.
const READY_WAIT_MAX: Duration = Duration::from_secs(300);
/// The pause between two checks of readiness.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The timeout of a request over the loopback interface.
const RESPONSE_WAIT_MAX: Duration = Duration::from_secs(5);
/// The clock ticks per second in /proc, equal on all Linux systems.
const TICKS_PER_SECOND: f64 = 100.0;

/// A running `kai`.
pub(crate) struct KaiProcess {
    process: Child,
    address: SocketAddr,
    started: Instant,
}

/// Memory and CPU time of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessUsage {
    /// Resident memory now.
    pub(crate) rss_mib: f64,
    /// Peak resident memory.
    pub(crate) peak_mib: f64,
    /// CPU time since the start.
    pub(crate) cpu_seconds: f64,
}

impl KaiProcess {
    /// Starts a role.
    pub(crate) fn start(role: &str, kubeconfig: &Path, more: &[&str]) -> anyhow::Result<KaiProcess> {
        let address = free_address()?;
        let listen = format!("--listen-address={address}");
        let flags = [&[listen.as_str(), "--log=warn"], more].concat();
        KaiProcess::spawn(role, kubeconfig, address, &flags)
    }

    /// Starts `kai ui`; the address is that of the page.
    pub(crate) fn ui(kubeconfig: &Path) -> anyhow::Result<KaiProcess> {
        let address = free_address()?;
        KaiProcess::spawn("ui", kubeconfig, address, &[&format!("--port={}", address.port())])
    }

    fn spawn(command: &str, kubeconfig: &Path, address: SocketAddr, flags: &[&str]) -> anyhow::Result<KaiProcess> {
        // Cargo builds `kai` into the same folder as this program.
        let program = std::env::current_exe()?.with_file_name("kai");
        let process = Command::new(&program)
            .arg(command)
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(flags)
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        Ok(KaiProcess {
            process,
            address,
            started: Instant::now(),
        })
    }

    /// Starts `kai all` with webhooks, which the API server reaches by address.
    pub(crate) fn all(kubeconfig: &Path, more: &[&str]) -> anyhow::Result<KaiProcess> {
        let webhooks = free_address()?;
        let url = format!("--role=admission=--webhook-url=https://{webhooks}");
        let port = format!("--role=admission=--webhook-addr={}", webhooks.port());
        let own = ["--plugin-server-port=0", &url, &port];
        KaiProcess::start("all", kubeconfig, &[&own, more].concat())
    }

    /// Waits until the process is ready; returns the time since its start.
    pub(crate) async fn ready(&mut self) -> anyhow::Result<Duration> {
        while !self
            .get("/readyz")
            .is_ok_and(|answer| answer.starts_with("HTTP/1.0 200"))
        {
            if let Some(status) = self.process.try_wait()? {
                bail!("kai ended: {status}");
            }
            if self.started.elapsed() > READY_WAIT_MAX {
                bail!("kai does not get ready: {:?}", self.get("/readyz"));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(self.started.elapsed())
    }

    /// The sum of all series of a metric.
    pub(crate) fn metric(&self, name: &str) -> anyhow::Result<f64> {
        let text = self.get("/metrics")?;
        let values = text.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let of = series.split('{').next()?;
            (of == name).then(|| value.parse::<f64>().ok()).flatten()
        });
        Ok(values.sum())
    }

    /// Memory and CPU time.
    pub(crate) fn usage(&self) -> anyhow::Result<ProcessUsage> {
        let root = format!("/proc/{}", self.process.id());
        let status = std::fs::read_to_string(format!("{root}/status"))?;
        let mib = |key: &str| -> Option<f64> {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
            Some(kib / 1024.0)
        };
        let stat = std::fs::read_to_string(format!("{root}/stat"))?;
        // utime and stime are fields 14 and 15, or 12 and 13 after the name, which may have spaces.
        let after = stat.rsplit(')').next().unwrap_or_default();
        let ticks = after.split_whitespace().skip(11).take(2);
        let ticks: f64 = ticks.filter_map(|field| field.parse::<f64>().ok()).sum();
        Ok(ProcessUsage {
            rss_mib: mib("VmRSS:").context("VmRSS")?,
            peak_mib: mib("VmHWM:").context("VmHWM")?,
            cpu_seconds: ticks / TICKS_PER_SECOND,
        })
    }

    /// The answer to a GET; an error unless the process answers in time.
    pub(crate) fn get(&self, path: &str) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.address, RESPONSE_WAIT_MAX)?;
        stream.set_read_timeout(Some(RESPONSE_WAIT_MAX))?;
        write!(stream, "GET {path} HTTP/1.0\r\nhost: {}\r\n\r\n", self.address)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

impl Drop for KaiProcess {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A free loopback address.
pub(crate) fn free_address() -> std::io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}
