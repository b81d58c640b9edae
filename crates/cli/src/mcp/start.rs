//! Reports of server starts: installed packages, slow starts, warnings, and host paths with `-v`.

use std::sync::OnceLock;

use toolpost_core::format_duration;
use toolpost_mcp::client::StartEvent;

use crate::print::Printer;
use crate::style::{label, paragraph};

/// The reporter of all starts, also of restarts.
static PRINTER: OnceLock<Printer> = OnceLock::new();

/// Reports the starts of all servers of this command.
pub(crate) fn report_to(printer: &Printer) {
    // A process runs one command.
    let _ = PRINTER.set(printer.clone());
}

/// Reports that packages are installed for a server before its first start.
pub(super) fn installing(server: &str, packages: &[String]) {
    let packages = packages.join(", ");
    tracing::info!("installing {packages} for {server}");
    if let Some(printer) = PRINTER.get() {
        printer.note(&format!("{}: installing {} ...", label(server), label(&packages)));
    }
}

/// Prints the warnings of an upstream's target.
pub(crate) fn warn(upstream: &str, warnings: &[String]) {
    let Some(printer) = PRINTER.get() else { return };
    for warning in warnings {
        printer.warn(&format!("{}: {warning}", label(upstream)));
    }
}

/// Reports the start of a server.
pub(super) fn report(server: &str, event: &StartEvent<'_>) {
    let Some(printer) = PRINTER.get() else { return };
    match event {
        StartEvent::Started { shown, not_shown } => {
            printer.print_paths(&format!("shown to {}:", label(server)), shown);
            printer.print_hidden(&format!("not shown to {}:", label(server)), not_shown);
        }
        StartEvent::Waiting { stderr, limit } => {
            let (server, limit) = (label(server), format_duration(*limit));
            printer
                .note(&format!("the server `{server}` has not answered `initialize`; waiting for {limit}"));
            if !stderr.is_empty() {
                printer.note(&format!("stderr of `{server}`:\n{}", paragraph(stderr)));
            }
        }
        _ => {}
    }
}
