//! `kai all` with and without readers of its page, on 1,000 nodes with 10,000 pods: 450 gangs of four wait, 20 pods a second come, are bound
//! and go, a hundred others change, and the log of decisions is full. Measures memory, cycles, and the delay from a new pod to its binding.
//! Fails if an open page takes [`MEMORY_MIB_MAX`].

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::time::{Instant, MissedTickBehavior};

use crate::canned_server::{Bindings, CannedServer, Size};
use crate::process::{KaiProcess, free_address};
use crate::table::Table;

/// Also that of the part `live`.
pub(crate) const SIZE: Size = Size {
    pods: 8_000,
    pods_per_node: 8,
    waiting_gangs: 450,
    slots: 200,
};
/// Time between two steps of the load, so that changes come at all times and not once per second.
const STEP: Duration = Duration::from_millis(50);
/// Changed pods per step.
const CHANGES: usize = 5;
/// New pods per step: the usual rate, and the one that fills the log of 4,096 decisions before anything is measured.
const USUAL: usize = 1;
const FILLING: usize = 6;
const FILLING_SECONDS: u32 = 40;
/// Seconds of each measured phase.
const SECONDS: u32 = 30;
/// The time after which the writes of the start are done.
const STARTUP_WRITES_MAX: Duration = Duration::from_secs(5);
/// What an open page must stay below: the highest memory with it, above the mean without.
const MEMORY_MIB_MAX: f64 = 10.0;
/// The views that several readers look at.
const VIEWS: [&str; 5] = ["/", "/gpus", "/queues", "/waiting", "/decisions"];

/// The cycles, the bindings and the memory of one phase.
struct Phase {
    cycle_ms: f64,
    bindings: Bindings,
    /// The mean and the highest of a sample per second.
    rss_mib: f64,
    rss_mib_max: f64,
    cpu_percent: f64,
}

pub(crate) async fn run(table: &mut Table) -> anyhow::Result<()> {
    let server = CannedServer::serve(SIZE).await?;
    let kubeconfig = server.kubeconfig()?;
    let port = free_address()?.port();
    let page = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let flags = [
        "--no-admission",
        "--plugin-server-port=0",
        "--role=scheduler=--audit-period=0s",
        // The tenant comes from another address than loopback, where nobody needs a token.
        &format!("--ui-address=0.0.0.0:{port}"),
    ];
    let mut kai = KaiProcess::start("all", kubeconfig.path(), &flags)?;
    kai.ready().await?;
    tokio::time::sleep(STARTUP_WRITES_MAX).await;
    phase(&server, &kai, FILLING, FILLING_SECONDS).await?;
    let decided = kai.metric("kai_decisions_total")?;
    ensure!(decided > 4_096.0, "the log is not full after {decided} decisions");

    let closed = phase(&server, &kai, USUAL, SECONDS).await?;
    let reader = Reader::open(page, "/gpus", Caller::Plain)?;
    let open = phase(&server, &kai, USUAL, SECONDS).await?;
    let read = reader.close()?;
    let many = readers(page)?;
    let names = format!("{} pages", many.len());
    let crowded = phase(&server, &kai, USUAL, SECONDS).await?;
    for reader in many {
        reader.close()?;
    }
    let again = phase(&server, &kai, USUAL, SECONDS).await?;
    println!("    {read} bytes of the GPU map were read");

    let shape = format!("{} pods on {} nodes", SIZE.pods_in_all(), SIZE.nodes());
    let several = format!("{names} are open");
    let phases = [
        ("nobody looks", &closed),
        ("one page is open", &open),
        (&*several, &crowded),
        ("after that", &again),
    ];
    for (what, phase) in phases {
        phase.add_to(table, &format!("page, {shape}, {what}"))?;
    }
    let taken = |phase: &Phase| phase.rss_mib_max - closed.rss_mib;
    let figure = |phase: &Phase| format!("{:.1} MiB", taken(phase));
    table.row("page, memory that it takes at most", figure(&open), "below 10 MiB", "");
    table.row(
        &format!("page, memory that {names} take at most"),
        figure(&crowded),
        "",
        "",
    );
    ensure!(
        taken(&open) < MEMORY_MIB_MAX,
        "an open page takes {:.1} MiB, and must stay below {MEMORY_MIB_MAX}",
        taken(&open)
    );
    Ok(())
}

/// A reader of each view, and a tenant where this machine has an address besides loopback.
fn readers(page: SocketAddr) -> anyhow::Result<Vec<Reader>> {
    let of_views = VIEWS.iter().map(|view| Reader::open(page, view, Caller::Zipped));
    let mut readers = of_views.collect::<anyhow::Result<Vec<Reader>>>()?;
    match own_address() {
        Some(address) => {
            let page = SocketAddr::new(address, page.port());
            readers.push(Reader::open(page, "/gpus", Caller::Tenant)?);
        }
        None => println!("    without a tenant: this machine has no address besides loopback"),
    }
    Ok(readers)
}

/// An address of this machine that is not loopback.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // Sends nothing: it only chooses the own address for this (reserved) one.
    socket.connect((Ipv4Addr::new(198, 51, 100, 1), 9)).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

async fn phase(server: &CannedServer, kai: &KaiProcess, created: usize, seconds: u32) -> anyhow::Result<Phase> {
    let sums = || -> anyhow::Result<(f64, f64, f64)> {
        Ok((
            kai.metric("kai_cycle_duration_seconds_sum")?,
            kai.metric("kai_cycle_duration_seconds_count")?,
            kai.usage()?.cpu_seconds,
        ))
    };
    let before = sums()?;
    server.take_bindings();
    let mut samples = Vec::new();
    let mut ticker = tokio::time::interval(STEP);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let start = Instant::now();
    let length = Duration::from_secs(seconds.into());
    let mut sample_at = start + Duration::from_secs(1);
    while start.elapsed() < length {
        ticker.tick().await;
        server.change(CHANGES);
        (0..created).for_each(|_| server.replace());
        if Instant::now() >= sample_at {
            sample_at += Duration::from_secs(1);
            samples.push(kai.usage()?.rss_mib);
        }
    }
    let after = sums()?;
    Ok(Phase {
        cycle_ms: (after.0 - before.0) / (after.1 - before.1).max(1.0) * 1e3,
        bindings: server.take_bindings(),
        rss_mib: samples.iter().sum::<f64>() / samples.len().max(1) as f64,
        rss_mib_max: samples.iter().copied().fold(0.0, f64::max),
        cpu_percent: (after.2 - before.2) / start.elapsed().as_secs_f64() * 100.0,
    })
}

impl Phase {
    fn add_to(&self, table: &mut Table, what: &str) -> anyhow::Result<()> {
        let Bindings { delays, unbound } = &self.bindings;
        // Some pods of the last moment may still wait for their turn.
        ensure!(*unbound <= delays.len() / 100, "{unbound} pods got no place ({what})");
        let at = |percent: usize| {
            let delay = delays.get(delays.len().saturating_sub(1) * percent / 100).copied();
            delay.unwrap_or_default().as_secs_f64() * 1e3
        };
        let figure = format!(
            "{:.2} ms per cycle; new pod to binding {:.0} ms (p50), {:.0} ms (p99) of {}; {:.1} MiB (highest {:.1}), {:.1} % of a core",
            self.cycle_ms,
            at(50),
            at(99),
            delays.len(),
            self.rss_mib,
            self.rss_mib_max,
            self.cpu_percent
        );
        table.row(what, figure, "", "");
        Ok(())
    }
}

/// How a reader asks.
#[derive(Clone, Copy)]
enum Caller {
    Plain,
    /// As a browser, with gzip.
    Zipped,
    /// With a token and gzip.
    Tenant,
}

/// A reader of a view, as a browser reads it: the document, and then the stream of changes.
struct Reader {
    view: String,
    stream: TcpStream,
    task: std::thread::JoinHandle<usize>,
}

impl Reader {
    fn open(page: SocketAddr, view: &str, caller: Caller) -> anyhow::Result<Reader> {
        let more = match caller {
            Caller::Plain => "",
            Caller::Zipped => "accept-encoding: gzip\r\n",
            Caller::Tenant => "accept-encoding: gzip\r\nauthorization: Bearer tenant\r\n",
        };
        let ask = |path: &str| -> anyhow::Result<TcpStream> {
            let mut stream = TcpStream::connect(page).context("connecting to the page")?;
            write!(
                stream,
                "GET {path} HTTP/1.1\r\nhost: {page}\r\n{more}connection: close\r\n\r\n"
            )?;
            Ok(stream)
        };
        let mut document = Vec::new();
        ask(view)?.read_to_end(&mut document)?;
        ensure!(document.starts_with(b"HTTP/1.1 200 "), "the page refuses {view}");
        let stream = ask(&format!("/events?view={}", view.replace('/', "%2F")))?;
        let mut reading = stream.try_clone()?;
        let task = std::thread::spawn(move || {
            let mut sum = document.len();
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(count @ 1..) = reading.read(&mut buffer) {
                sum += count;
            }
            sum
        });
        Ok(Reader {
            view: view.to_owned(),
            stream,
            task,
        })
    }

    /// Ends the stream; returns the bytes that were read.
    fn close(self) -> anyhow::Result<usize> {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        let read = self.task.join().unwrap_or(0);
        ensure!(read > 1_000, "the page sent {read} bytes of {} only", self.view);
        Ok(read)
    }
}
