//! The document around a view: head, navigation, search, state of the connection.

use crate::assets;
use crate::html::Html;
use crate::route::VIEWS;

/// What the document says besides the view.
pub(crate) struct Document<'a> {
    pub(crate) title: &'a str,
    pub(crate) cluster_name: &'a str,
    /// The place in the navigation.
    pub(crate) place: Option<usize>,
    /// The digest of the view's outline, for the event stream; `None` = the view is not live.
    pub(crate) digest: Option<&'a str>,
    /// The time of the server, so that ages are right where the browser's clock is not.
    pub(crate) now: &'a str,
    /// The time of the view; `None` = there is none.
    pub(crate) time: Option<kai_view::Time>,
    /// Whether the reader has a token to forget.
    pub(crate) logged_in: bool,
}

impl Document<'_> {
    /// Writes the document with `content` as its view, which is HTML made by this crate.
    pub(crate) fn write(&self, content: &Html) -> String {
        let mut html = Html::with_capacity(content.len() + 4_096);
        self.begin(&mut html);
        html.raw("<header class=\"top\"><a class=\"brand\" href=\"/\">kai</a><span class=\"cluster\">")
            .text(self.cluster_name);
        html.raw("</span><nav aria-label=\"Views\">");
        for (at, (address, name)) in VIEWS.iter().enumerate() {
            html.raw("<a href=\"").raw(address).raw(if self.place == Some(at) {
                "\" aria-current=\"page\">"
            } else {
                "\">"
            });
            html.raw(name).raw("<kbd>").show(at + 1).raw("</kbd></a>");
        }
        html.raw("</nav><form class=\"search\" role=\"search\" hidden><input type=\"search\" id=\"search\" aria-label=\"Search this view\" ");
        html.raw("placeholder=\"Search  /\" autocomplete=\"off\" spellcheck=\"false\"></form>");
        html.raw("<p id=\"state\" role=\"status\" aria-live=\"polite\">static</p></header>");
        html.raw("<main id=\"view\" tabindex=\"-1\">")
            .append(content)
            .raw("</main>");
        html.raw("<footer><span>");
        match self.time {
            Some(time) => html.raw("Cluster as of ").time(time),
            None => html.raw("The time of the cluster's state is ").unknown(),
        };
        html.raw("</span><a href=\"/view.json\">JSON</a><button id=\"keys\" type=\"button\" hidden>Keys <kbd>?</kbd></button>");
        if self.logged_in {
            html.raw("<form method=\"post\" action=\"/logout\"><button>Log out</button></form>");
        }
        html.raw(
            "</footer><dialog id=\"panel\" aria-label=\"Details\"></dialog><div id=\"tip\" hidden></div></body></html>",
        );
        html.into_string()
    }

    fn begin(&self, html: &mut Html) {
        html.raw("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>")
            .text(self.title)
            .raw(" · ");
        html.text(self.cluster_name).raw(" · kai</title>");
        html.raw("<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\">");
        html.raw("<link rel=\"stylesheet\" href=\"/assets/page.css?v=")
            .raw(assets::version());
        html.raw("\"><link rel=\"icon\" href=\"/assets/icon.svg\"><script type=\"module\" src=\"/assets/page.js?v=");
        html.raw(assets::version())
            .raw("\"></script></head><body data-now=\"")
            .text(self.now);
        if let Some(digest) = self.digest {
            html.raw("\" data-digest=\"").text(digest);
        }
        html.raw("\"><a class=\"skip\" href=\"#view\">Skip to the content</a>");
    }

    /// Writes the document that asks for a token.
    pub(crate) fn write_login(&self, next: &str, refusal: Option<&str>) -> String {
        let mut html = Html::with_capacity(2_048);
        self.begin(&mut html);
        html.raw(
            "<main id=\"view\" class=\"login\"><form class=\"panel\" method=\"post\" action=\"/login\"><h1>kai</h1><p>",
        );
        html.text(self.cluster_name).raw("</p>");
        if let Some(refusal) = refusal {
            html.raw("<p class=\"bad\" role=\"alert\">").text(refusal).raw("</p>");
        }
        html.raw("<label for=\"token\">Token of Kubernetes</label>");
        html.raw("<input id=\"token\" name=\"token\" type=\"password\" autocomplete=\"off\" required>");
        html.raw("<input type=\"hidden\" name=\"next\" value=\"")
            .text(next)
            .raw("\"><button>Log in</button>");
        html.raw("<p class=\"quiet\">You see the namespaces in which the token may list pods. <code>kubectl create token NAME</code> ");
        html.raw("makes one for a service account. The token stays in a cookie until the browser ends, or until you log out.</p></form></main></body></html>");
        html.into_string()
    }
}
