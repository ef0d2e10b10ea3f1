//! `kai top`: the cluster on a full screen, live.
//!
//! One task follows the cluster and computes views ([`feed`]), one thread reads keys, and the main task draws: a key or a view changes the
//! state ([`app`]), whose tables ([`tables`]) are drawn ([`draw`]). The state and the drawing know neither terminal nor cluster.

mod app;
mod changes;
mod draw;
mod feed;
#[cfg(test)]
mod picture;
mod tables;

use std::process::ExitCode;

use clap::Args;
use ratatui::crossterm::event::{self, Event};
use tokio::sync::{mpsc, watch};

use crate::inspect::Origin;
use crate::inspect::live::LiveCluster;
use app::{App, Wish};
use feed::{News, Question};

/// The flags of `kai top`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Where you may not list pods of all namespaces, those of this one are shown [default: that of the kubeconfig's context].
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    #[command(flatten)]
    origin: Origin,
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    use std::io::IsTerminal as _;
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        anyhow::bail!("kai top needs a terminal; `kai gpus`, `kai queues` and `kai pending` write to files");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let (inputs, mut read) = mpsc::channel(64);
    let result = runtime.block_on(async {
        let (questions, asked) = watch::channel(None);
        let (news, mut latest) = mpsc::channel(1);
        // Before the screen is taken: errors of the connection are plain lines.
        let (address, feed) = match arguments.origin.scheduler() {
            Some(scheduler) => {
                scheduler.view().await?;
                let address = scheduler.to_string();
                (address, tokio::spawn(feed::follow_scheduler(scheduler, asked, news)))
            }
            None => {
                let namespace = arguments.namespace.as_deref();
                let live = LiveCluster::connect(arguments.origin.connection(), namespace).await?;
                let (live, refused) = live.with_decisions(namespace).await;
                if let Err(error) = refused {
                    tracing::debug!(%error, "Events can't be read");
                }
                (live.address().to_owned(), tokio::spawn(feed::follow(live, asked, news)))
            }
        };
        let mut app = App::new(&address, !crate::grid::Screen::is_plain());
        let mut terminal = ratatui::try_init()?;
        std::thread::spawn(move || read_keys(&inputs));
        let result = show(&mut terminal, &mut app, &mut read, &mut latest, &questions).await;
        ratatui::restore();
        feed.abort();
        result
    });
    // The thread that reads keys ends with the process.
    runtime.shutdown_background();
    result.map(|()| ExitCode::SUCCESS)
}

/// Sends every event of the terminal, until nobody listens.
fn read_keys(events: &mpsc::Sender<Event>) {
    while let Ok(read) = event::read() {
        if events.blocking_send(read).is_err() {
            return;
        }
    }
}

async fn show(
    terminal: &mut ratatui::DefaultTerminal,
    app: &mut App,
    keys: &mut mpsc::Receiver<Event>,
    latest: &mut mpsc::Receiver<News>,
    questions: &watch::Sender<Option<Question>>,
) -> anyhow::Result<()> {
    loop {
        terminal.draw(|frame| draw::draw(frame, app))?;
        let wish = tokio::select! {
            event = keys.recv() => match event {
                Some(Event::Key(key)) => app.on_key(key),
                Some(_) => None,
                None => return Ok(()),
            },
            news = latest.recv() => match news {
                Some(news) => app.on_news(news),
                None => anyhow::bail!("the watches of the cluster have ended"),
            },
        };
        match wish {
            Some(Wish::Quit) => return Ok(()),
            Some(Wish::Explain(pod)) => drop(questions.send_replace(Some(Question { pod: *pod }))),
            None => {}
        }
    }
}
