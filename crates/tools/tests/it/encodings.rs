//! Encodings, detected and named.

use serde_json::json;
use toolpost_core::Code;

use crate::support::Bench;

const GERMAN: &str = "Die Straße führt über die Brücke nach Köln, schön wär's. Größe: zwölf Äpfel.\n";
const JAPANESE: &str = "日本語のテキストです。文字コードを調べます。これはテストです。\n";

fn utf_16(text: &str, bytes: fn(u16) -> [u8; 2]) -> Vec<u8> {
    std::iter::once(0xfeff).chain(text.encode_utf16()).flat_map(bytes).collect()
}

#[tokio::test]
async fn encodings_are_detected() {
    let bench = Bench::new();
    let shift_jis =
        b"\x93\xfa\x96\x7b\x8c\xea\x82\xcc\x83\x65\x83\x4c\x83\x58\x83\x67\x82\xc5\x82\xb7\x81\x42";
    for (name, bytes, encoding, text) in [
        ("utf8", GERMAN.as_bytes().to_vec(), "utf-8", GERMAN),
        ("bom", [b"\xef\xbb\xbf", GERMAN.as_bytes()].concat(), "utf-8-sig", GERMAN),
        ("le", utf_16(GERMAN, u16::to_le_bytes), "utf-16le-sig", GERMAN),
        ("be", utf_16(GERMAN, u16::to_be_bytes), "utf-16be-sig", GERMAN),
        ("latin", GERMAN.chars().map(|letter| letter as u8).collect(), "windows-1252", GERMAN),
        ("sjis", shift_jis.to_vec(), "shift_jis", "日本語のテキストです。"),
        ("ascii", b"plain".to_vec(), "utf-8", "plain"),
        ("empty", Vec::new(), "utf-8", ""),
    ] {
        bench.put(name, &bytes);
        let value = bench.value("read_file", json!({ "path": name })).await;
        assert_eq!((&value["encoding"], &value["content"]), (&json!(encoding), &json!(text)), "{name}");
        assert_eq!(value["lossy"], false);
        // Written back under the name that was given, it is the same file.
        let again = json!({"path": "again", "content": text, "encoding": encoding, "create_backup": false});
        bench.value("write_file", again).await;
        assert_eq!(std::fs::read(bench.path("again")).unwrap(), bytes, "{name}");
    }
}

#[tokio::test]
async fn a_named_encoding_is_used() {
    let bench = Bench::new();
    bench.put("a", b"\xa4 10");
    for (encoding, content) in [("iso-8859-15", "€ 10"), ("latin-1", "¤ 10")] {
        let value = bench.value("read_file", json!({"path": "a", "encoding": encoding})).await;
        assert_eq!(value["content"], content);
    }
    let value = bench.value("read_file", json!({"path": "a", "encoding": "utf-8"})).await;
    assert_eq!((&value["content"], &value["lossy"]), (&json!("\u{fffd} 10"), &json!(true)));
    let error = bench.error("read_file", json!({"path": "a", "encoding": "utf-9"})).await;
    assert_eq!((error.code(), &error.context()["pointer"]), (Code::InvalidInput, &json!("/encoding")));
}

#[tokio::test]
async fn an_unencodable_character_is_rejected_before_the_write() {
    let bench = Bench::new();
    bench.put("a", "before");
    let arguments = json!({"path": "a", "content": format!("one\n{JAPANESE}"), "encoding": "latin-1"});
    let error = bench.error("write_file", arguments).await;
    assert_eq!((error.code(), &error.context()["pointer"]), (Code::InvalidInput, &json!("/content")));
    assert!(error.message().contains("line 2"), "{error}");
    assert_eq!((bench.read("a").await.as_str(), bench.names()), ("before", vec!["a".to_owned()]));
    assert!(
        bench.run("write_file", json!({"path": "b", "content": "é", "encoding": "ascii"})).await.is_err()
    );
}
