//! Data frames and figures in sessions, with optional libraries.

use serde_json::json;
use toolpost_sandbox::{Language, Limits, Sandbox, Session};

use crate::sessions::{run, value};
use crate::support::{Mode, python};

/// A sandbox with a Python: from the directory in `TOOLPOST_TEST_PYTHON`, or the system's.
fn sandbox() -> Option<Sandbox> {
    let mode = Mode::available().into_iter().find(|mode| *mode != Mode::Shared)?;
    let mut sandbox: Sandbox = mode.sandbox().limits(Limits::default().with_memory(2 << 30));
    #[expect(clippy::disallowed_methods, reason = "the machine says where its Python with libraries is")]
    if let Some(directory) = std::env::var_os("TOOLPOST_TEST_PYTHON") {
        let mut search = std::path::Path::new(&directory).join("bin").into_os_string();
        search.push(":/usr/bin:/bin");
        sandbox = sandbox.search_path(search);
    }
    Some(sandbox)
}

/// A session whose Python has a library.
fn with(library: &str) -> Option<Session> {
    let session = Session::start(&sandbox()?, Language::Python).unwrap();
    if run(&session, &format!("import {library}")).verdict.is_ok() {
        return Some(session);
    }
    println!("SKIP {library}: no Python here has it");
    None
}

#[test]
fn open_figures_become_png_artifacts() {
    let Some(session) = with("matplotlib") else { return };
    let outcome = run(
        &session,
        "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.figure()\nplt.bar([1, 2], [3, 4])\nplt.show()\n1",
    );
    assert!(!outcome.stderr.text().contains("non-interactive"), "{}", outcome.stderr.text());
    let found: Vec<(&str, &str)> =
        outcome.artifacts.iter().map(|artifact| (artifact.path.as_str(), artifact.media_type)).collect();
    assert_eq!(
        found,
        [("figure-2-1.png", "image/png"), ("figure-2-2.png", "image/png")],
        "{:?}",
        outcome.report.notes
    );
    assert!(outcome.artifacts[0].read().unwrap().starts_with(b"\x89PNG"));
    // They are closed: the next cell shows only its own, also if the code reused the name.
    assert!(run(&session, "2").artifacts.is_empty());
    let outcome = run(&session, "open('figure-4-1.png', 'w').write('mine')\nplt.plot([1])\n1");
    let names: Vec<&str> = outcome.artifacts.iter().map(|artifact| artifact.path.as_str()).collect();
    assert_eq!(names, ["figure-4-1-1.png", "figure-4-1.png"]);
    assert_eq!(session.download("figure-4-1.png", 10).unwrap(), b"mine");
    let fork = session.fork(1).unwrap().pop().unwrap();
    assert_eq!(run(&fork, "plt.plot([2])\n1").artifacts.len(), 1);
}

#[test]
fn a_run_without_a_session_shows_the_same() {
    let Some(session) = with("matplotlib, pandas") else { return };
    drop(session);
    let code = "import matplotlib.pyplot as plt, pandas as pd\nplt.plot([1, 2])\nplt.show()\nplt.bar([1], [2])\n\
                plt.savefig('mine.png')\nplt.figure()\nplt.plot([3])\npd.DataFrame({'a': [1, 2]})";
    let outcome = python(&sandbox().unwrap(), code);
    let names: Vec<&str> = outcome.artifacts.iter().map(|artifact| artifact.path.as_str()).collect();
    assert_eq!(names, ["figure-1.png", "figure-2.png", "mine.png"], "{:?}", outcome.stderr.text());
    assert_eq!(outcome.stderr.text(), "", "neither fontconfig nor matplotlib complains");
    let value = outcome.value.unwrap();
    assert_eq!((&value["type"], &value["data"]), (&json!("DataFrame"), &json!([[1], [2]])));
    assert_eq!(value["text"], "   a\n0  1\n1  2");
}

#[test]
fn a_data_frame_becomes_rows_and_text() {
    let Some(session) = with("pandas") else { return };
    let code = "import pandas as pd\nframe = pd.DataFrame({'a': [1, 2], 'b': ['x', None]})\nframe";
    let found = value(&session, code);
    assert_eq!(found["type"], "DataFrame");
    assert_eq!((&found["columns"], &found["index"]), (&json!(["a", "b"]), &json!([0, 1])));
    assert_eq!((&found["data"], &found["shape"]), (&json!([[1, "x"], [2, null]]), &json!([2, 2])));
    assert!(found["text"].as_str().unwrap().contains('x'), "{found}");
    let found = value(&session, "frame['a']");
    assert_eq!((&found["type"], &found["data"]), (&json!("Series"), &json!([[1], [2]])));
    let found = value(&session, "pd.DataFrame({'a': range(1_000_000)})");
    assert_eq!((&found["rows"], &found["shape"]), (&json!(1000), &json!([1_000_000, 1])));
    assert_eq!(value(&session, "frame['a'].sum()"), json!(3));
    assert_eq!(value(&session, "frame['a'].to_numpy()")["data"], json!([1, 2]));
    assert!(run(&session, "frame").artifacts.is_empty());
}

/// The cells of a data frame are exact: floats with all digits, times as ISO text, missing ones as null.
#[test]
fn the_cells_of_a_data_frame_are_exact() {
    let Some(session) = with("pandas") else { return };
    let cold = sandbox().unwrap();
    let start = "import datetime, decimal, numpy as np, pandas as pd\n";
    let typed = |kind: &str, text: &str| json!({ "type": kind, "text": text });
    for (code, dtypes, data) in [
        ("pd.DataFrame({'p': [1e-12, 0.12345678901234567]})", json!(["float64"]), {
            json!([[1e-12], [0.123_456_789_012_345_67]])
        }),
        ("pd.DataFrame({'n': [2**63, 2**64 - 1]})", json!(["uint64"]), json!([[1_u64 << 63], [u64::MAX]])),
        ("pd.DataFrame({'n': [2**100]})", json!(["object"]), {
            json!([[typed("int", "1267650600228229401496703205376")]])
        }),
        (
            "pd.DataFrame({'t': pd.to_datetime(['2024-01-02T03:04:05.123456789', None])})",
            json!(["datetime64[ns]"]),
            { json!([["2024-01-02T03:04:05.123456789"], [null]]) },
        ),
        (
            "pd.DataFrame({'t': [pd.Timestamp('2024-01-02', tz='UTC').as_unit('ns')]})",
            json!(["datetime64[ns, UTC]"]),
            { json!([["2024-01-02T00:00:00+00:00"]]) },
        ),
        ("pd.DataFrame({'f': [np.inf, np.nan, -0.0]})", json!(["float64"]), {
            json!([[typed("float", "inf")], [null], [-0.0]])
        }),
        (
            "pd.DataFrame({'o': [decimal.Decimal('1.10'), {1}, datetime.date(2024, 1, 2)]})",
            json!(["object"]),
            { json!([[typed("decimal.Decimal", "Decimal('1.10')")], [typed("set", "{1}")], ["2024-01-02"]]) },
        ),
        ("pd.DataFrame({'i': pd.array([1, None], dtype='Int64')})", json!(["Int64"]), json!([[1], [null]])),
        ("pd.DataFrame([[1, 2]], columns=['a', 'a'])", json!(["int64", "int64"]), json!([[1, 2]])),
    ] {
        let code = format!("{start}{code}");
        for found in [python(&cold, &code).value.unwrap(), value(&session, &code)] {
            assert_eq!((&found["dtypes"], &found["data"]), (&dtypes, &data), "{code}");
        }
    }
    for (code, expected) in [
        (
            "{'mean': np.float64(0.5), 'n': np.int64(5), 'b': np.bool_(True)}",
            json!({ "mean": 0.5, "n": 5, "b": true }),
        ),
        ("[np.float32(0.1), np.uint64(2**64 - 1), np.str_('x')]", json!([0.1_f32, u64::MAX, "x"])),
        ("{'frame': pd.Series([1]).to_frame('a')}", {
            json!({ "frame": {
                "type": "DataFrame", "shape": [1, 1], "text": "   a\n0  1", "dtypes": ["int64"], "rows": 1,
                "columns": ["a"], "index": [0], "data": [[1]],
            } })
        }),
        ("np.array([1.5, np.nan])", {
            json!({ "type": "ndarray", "shape": [2], "dtype": "float64", "text": "[1.5 nan]", "data": [1.5, typed("float", "nan")] })
        }),
        ("np.array(['2024-01-02T03:04:05.123456789'], 'M8[ns]')", {
            json!({
                "type": "ndarray", "shape": [1], "dtype": "datetime64[ns]", "text": "['2024-01-02T03:04:05.123456789']",
                "data": ["2024-01-02T03:04:05.123456789"],
            })
        }),
    ] {
        let code = format!("{start}{code}");
        for found in [python(&cold, &code).value.unwrap(), value(&session, &code)] {
            assert_eq!(found, expected, "{code}");
        }
    }
}
