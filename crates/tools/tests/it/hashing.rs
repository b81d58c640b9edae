//! `hash_text` against known digests.

use serde_json::json;
use toolpost_core::Code;

use crate::support::Bench;

#[tokio::test]
async fn digests_are_the_known_ones() {
    let bench = Bench::new();
    for (text, algorithm, expected) in [
        ("", "md5", "d41d8cd98f00b204e9800998ecf8427e"),
        ("", "sha1", "da39a3ee5e6b4b0d3255bfef95601890afd80709"),
        ("", "sha256", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        (
            "",
            "sha512",
            "cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e",
        ),
        (
            "",
            "blake2b",
            "786a02f742015903c6c6fd852552d272912f4740e15847618a86e217f71f5419d25e1031afee585313896444934eb04b903a685b1448b755d56f701afe9be2ce",
        ),
        ("", "blake2s", "69217a3079908094e11121d042354a7c1f55b6482ca1a51e1b250dfd1ed0eef9"),
        ("hello", "md5", "5d41402abc4b2a76b9719d911017c592"),
        ("hello", "sha1", "aaf4c61ddcc5e8a2dabede0f3b482cd9aea9434d"),
        ("hello", "sha256", "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"),
        (
            "hello",
            "blake2b",
            "e4cfa39a3d37be31c59609e807970799caa68a19bfaa15135f165085e01d41a65ba1e1b146aeb6bd0092b49eac214c103ccfa3a365954bbbe52f74a2b3620c94",
        ),
        ("hello", "blake2s", "19213bacc58dee6dbde3ceb9a47cbb330b3d86f8cca8997eb00be456f140ca25"),
        ("Grüße", "sha256", "f83e039796c6453a10f5519e39fd113901572316a1a8ea07cb525d2801dfd074"),
    ] {
        let value = bench.value("hash_text", json!({ "text": text, "algorithm": algorithm })).await;
        let expected =
            json!({ "hash": expected, "algorithm": algorithm, "output_format": "hex", "bytes": text.len() });
        assert_eq!(value, expected, "{algorithm} of {text:?}");
    }
}

#[tokio::test]
async fn each_parameter_counts() {
    let bench = Bench::new();
    for (arguments, expected) in [
        (json!({ "text": "hello" }), "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"),
        (
            json!({ "text": "hello", "algorithm": "md5", "output_format": "base64" }),
            "XUFAKrxLKna5cZ2REBfFkg==",
        ),
        (
            json!({ "text": "Grüße", "encoding": "utf-16le" }),
            "35cb3273e608ca6d4e978c413a6ca3f40507a0529cc2122fc3ce4c99c55b563a",
        ),
    ] {
        assert_eq!(bench.value("hash_text", arguments.clone()).await["hash"], expected, "{arguments}");
    }
}

#[tokio::test]
async fn invalid_hash_arguments_are_errors() {
    let bench = Bench::new();
    for (arguments, pointer) in [
        (json!({}), "/text"),
        (json!({ "text": 5 }), "/text"),
        (json!({ "text": "a", "algorithm": "sha257" }), "/algorithm"),
        (json!({ "text": "a", "output_format": "bytes" }), "/output_format"),
        (json!({ "text": "a", "encoding": "utf-9" }), "/encoding"),
        (json!({ "text": "日", "encoding": "latin-1" }), "/text"),
    ] {
        let error = bench.error("hash_text", arguments.clone()).await;
        assert!(matches!(error.code(), Code::InvalidInput | Code::MissingParam), "{arguments}: {error}");
        assert_eq!(error.context()["pointer"], pointer, "{arguments}: {error}");
    }
}
