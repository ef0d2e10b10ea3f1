//! Serves the page for a synthetic cluster that changes:
//!
//! `cargo run -p kai-page --example demo -- [--port 8089] [--nodes 1000] [--every MILLISECONDS] [--frozen] [--measure]`

mod synthetic;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kai_page::{Access, Authorizer, BoxFuture, PageOptions, Source, StoryStep, StorySteps, router};
use kai_view::{ClusterView, ExplanationView};

use synthetic::Simulation;

struct Demo {
    view: Mutex<Arc<ClusterView>>,
}

impl Source for Demo {
    fn view(&self) -> BoxFuture<'_, Option<Arc<ClusterView>>> {
        Box::pin(async { self.view.lock().ok().map(|view| view.clone()) })
    }

    fn explain(&self, _: &str, _: &str) -> BoxFuture<'_, Option<ExplanationView>> {
        Box::pin(async {
            let remedy = |text: &str| kai_mirror::RemedyView {
                text: text.to_owned(),
                tried: true,
                steps: Vec::new(),
            };
            Some(ExplanationView {
                position: None,
                needs: Some("4 GPUs on one node; h100-3 has room but is cordoned; h100-1 has 2 free".to_owned()),
                fits: Some("largest request that fits now: 2 GPUs on h100-1".to_owned()),
                nearest_nodes: Vec::new(),
                remedies: vec![
                    remedy("uncordon node h100-3"),
                    remedy("ask for at most 2 GPUs for each pod"),
                ],
                no_remedy: None,
                cut: false,
                trials: 7,
            })
        })
    }
}

/// Everything for callers without a token; one namespace for the token `vision`; nothing for other tokens.
struct ByToken;

impl Authorizer for ByToken {
    fn authorize(&self, _: IpAddr, token: Option<&str>) -> BoxFuture<'_, Access> {
        let access = match token {
            None => Access::Everything,
            Some("vision") => Access::Namespaces(Arc::new(["team-vision".to_owned()].into())),
            Some(_) => Access::Refused(401, "the token is not valid".to_owned()),
        };
        Box::pin(async { access })
    }
}

struct Story(Mutex<Vec<StoryStep>>);

impl StorySteps for Story {
    fn steps(&self) -> Vec<StoryStep> {
        self.0.lock().map(|steps| steps.clone()).unwrap_or_default()
    }

    fn submit(&self, step: usize) -> BoxFuture<'_, Result<(), String>> {
        if let Ok(mut steps) = self.0.lock() {
            steps[step].submitted = true;
        }
        Box::pin(async { Ok(()) })
    }
}

fn flag(name: &str) -> Option<String> {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.next()?;
    Some(arguments.next().unwrap_or_default())
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let number = |name: &str, default: u64| flag(name).and_then(|text| text.parse().ok()).unwrap_or(default);
    let now = jiff::Timestamp::now().as_millisecond();
    let nodes = number("--nodes", 0) as usize;
    let mut simulation = match nodes {
        0 => Simulation::small(now - 60 * 40_000),
        nodes => Simulation::large(nodes, now),
    };
    let demo = Arc::new(Demo {
        view: Mutex::new(Arc::new(simulation.view())),
    });
    let title = |title: &str| StoryStep {
        title: title.to_owned(),
        submitted: false,
    };
    let steps = vec![
        title("Team vision trains on all GPUs"),
        title("Team language asks for its share"),
        title("A notebook takes a quarter of a GPU"),
    ];
    let router = router(PageOptions {
        source: demo.clone(),
        authorizer: Arc::new(ByToken),
        story: (nodes == 0).then(|| Arc::new(Story(Mutex::new(steps))) as Arc<dyn StorySteps>),
        cluster_name: "demo".to_owned(),
    });
    if std::env::args().all(|argument| argument != "--frozen") {
        let every = Duration::from_millis(number("--every", 1_500));
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(every).await;
                simulation.step(every.as_millis() as i64);
                let begin = Instant::now();
                let view = Arc::new(simulation.view());
                if let Ok(mut current) = demo.view.lock() {
                    *current = view;
                }
                if std::env::args().any(|argument| argument == "--measure") {
                    println!("made a view in {:?}", begin.elapsed());
                }
            }
        });
    }
    let address = SocketAddr::from(([127, 0, 0, 1], number("--port", 8_089) as u16));
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("http://{}", listener.local_addr()?);
    axum::serve(listener, router.into_make_service_with_connect_info::<SocketAddr>()).await
}
