//! `kai all` with and without a reader of its page: the memory and the cycles on 1,000 nodes and 10,000 pods, of which a hundred change
//! every second.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::canned_server::{CannedServer, Size};
use crate::process::{KaiProcess, free_address};
use crate::table::Table;

const SIZE: Size = Size {
    pods: 10_000,
    pods_per_node: 10,
};
/// Changed pods per second.
const CHANGES: usize = 100;
/// Seconds of each phase.
const SECONDS: u32 = 30;
/// The time after which the writes of the start are done.
const STARTUP_WRITES_MAX: Duration = Duration::from_secs(5);

/// The cycles and the memory of one phase.
struct Phase {
    cycle_ms: f64,
    /// The mean and the highest of a sample per second.
    rss_mib: f64,
    rss_mib_max: f64,
    cpu_percent: f64,
}

pub(crate) async fn run(table: &mut Table) -> anyhow::Result<()> {
    let server = CannedServer::serve(SIZE).await?;
    let kubeconfig = server.kubeconfig()?;
    let page = free_address()?;
    let flags = [
        "--no-admission",
        "--plugin-server-port=0",
        "--role=scheduler=--audit-period=0s",
        &format!("--ui-address={page}"),
    ];
    let mut kai = KaiProcess::start("all", kubeconfig.path(), &flags)?;
    kai.ready().await?;
    tokio::time::sleep(STARTUP_WRITES_MAX).await;
    // Twice, since memory still grows with the first changes.
    phase(&server, &kai).await?;
    let closed = phase(&server, &kai).await?;
    let reader = Reader::open(page)?;
    let open = phase(&server, &kai).await?;
    let read = reader.close();
    if read < 1_000 {
        bail!("the page sent {read} bytes only");
    }
    let again = phase(&server, &kai).await?;
    let shape = format!("{} pods on {} nodes", SIZE.pods, SIZE.nodes());
    for (what, phase) in [
        ("nobody looks", closed),
        ("one page is open", open),
        ("after that", again),
    ] {
        let figure = format!(
            "{:.2} ms per cycle, {:.1} MiB (highest {:.1}), {:.1} % of a core",
            phase.cycle_ms, phase.rss_mib, phase.rss_mib_max, phase.cpu_percent
        );
        table.row(&format!("page, {shape}, {what}"), figure, "", "");
    }
    println!("    {read} bytes of the page were read");
    Ok(())
}

async fn phase(server: &CannedServer, kai: &KaiProcess) -> anyhow::Result<Phase> {
    let sums = || -> anyhow::Result<(f64, f64, f64)> {
        Ok((
            kai.metric("kai_cycle_duration_seconds_sum")?,
            kai.metric("kai_cycle_duration_seconds_count")?,
            kai.usage()?.cpu_seconds,
        ))
    };
    let before = sums()?;
    let mut samples = Vec::new();
    for _ in 0..SECONDS {
        server.change(CHANGES);
        tokio::time::sleep(Duration::from_secs(1)).await;
        samples.push(kai.usage()?.rss_mib);
    }
    let after = sums()?;
    Ok(Phase {
        cycle_ms: (after.0 - before.0) / (after.1 - before.1).max(1.0) * 1e3,
        rss_mib: samples.iter().sum::<f64>() / f64::from(SECONDS),
        rss_mib_max: samples.iter().copied().fold(0.0, f64::max),
        cpu_percent: (after.2 - before.2) / f64::from(SECONDS) * 100.0,
    })
}

/// A reader of the GPU map, as a browser reads it: the document, and then the stream of changes.
struct Reader {
    stream: TcpStream,
    task: std::thread::JoinHandle<usize>,
}

impl Reader {
    fn open(page: SocketAddr) -> anyhow::Result<Reader> {
        let ask = |path: &str| -> anyhow::Result<TcpStream> {
            let mut stream = TcpStream::connect(page).context("connecting to the page")?;
            write!(
                stream,
                "GET {path} HTTP/1.1\r\nhost: {page}\r\nconnection: close\r\n\r\n"
            )?;
            Ok(stream)
        };
        let mut document = Vec::new();
        ask("/gpus")?.read_to_end(&mut document)?;
        let stream = ask("/events?view=%2Fgpus")?;
        let mut reading = stream.try_clone()?;
        let task = std::thread::spawn(move || {
            let mut sum = document.len();
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(count @ 1..) = reading.read(&mut buffer) {
                sum += count;
            }
            sum
        });
        Ok(Reader { stream, task })
    }

    /// Ends the stream; returns the bytes that were read.
    fn close(self) -> usize {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        self.task.join().unwrap_or(0)
    }
}
