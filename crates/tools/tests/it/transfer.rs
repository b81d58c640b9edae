//! `DataTransferTool`: a typed value out of a conversation.

use serde_json::json;
use toolpost::{Code, data};
use toolpost_toolbox::Toolbox;
use toolpost_tools::DataTransferTool;

/// An invoice.
#[data]
#[derive(Clone, Debug, PartialEq)]
struct Invoice {
    /// Who is to pay.
    customer: String,
    /// The amount.
    cents: u64,
}

#[tokio::test]
async fn the_latest_valid_value_is_returned() {
    let invoice = DataTransferTool::<Invoice>::new("transfer", "Transfer the invoice.").unwrap();
    let toolbox = Toolbox::builder().tool(invoice.tool()).build().unwrap();
    let spec = toolbox.spec("transfer").unwrap();
    assert_eq!(spec.input_schema.as_value()["properties"]["customer"]["description"], "Who is to pay.");
    assert_eq!(invoice.schema().as_value()["required"], json!(["customer", "cents"]));
    assert!(!invoice.has_data());
    assert_eq!(invoice.to_json().unwrap(), json!(null));
    toolbox.run("transfer", json!({ "customer": "Ada", "cents": 1 })).await.unwrap();
    let output = toolbox.run("transfer", json!({ "customer": "Ada", "cents": 250 })).await.unwrap();
    assert!(output.to_text().contains("replacing"), "{}", output.to_text());
    let refused = toolbox.run("transfer", json!({ "customer": "Bob", "cents": -1 })).await.unwrap_err();
    assert_eq!((refused.code(), &refused.context()["pointer"]), (Code::InvalidInput, &json!("/cents")));
    assert_eq!(invoice.get(), Some(Invoice { customer: "Ada".into(), cents: 250 }));
    assert_eq!(invoice.to_json().unwrap(), json!({ "customer": "Ada", "cents": 250 }));
    assert_eq!(invoice.clone().take().unwrap().cents, 250);
    assert!(!invoice.has_data());
    toolbox.run("transfer", json!({ "customer": "Cleo", "cents": 5 })).await.unwrap();
    invoice.clear();
    assert_eq!(invoice.get(), None);
    assert_eq!(DataTransferTool::<Invoice>::new("no name", "x").unwrap_err().code(), Code::InvalidInput);
}
