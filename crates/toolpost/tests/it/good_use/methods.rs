//! Methods as tools.

use toolpost::{ToolError, Toolbox, tools};

struct Shop {
    price: usize,
}

#[tools(category = "shop", group = "shop.orders")]
impl Shop {
    /// Order something.
    #[tool(policy(destructive, approval = "ask"))]
    async fn order(&self, item: String) -> Result<String, ToolError> {
        Ok(self.price(&item).to_string())
    }

    fn price(&self, item: &str) -> usize {
        self.price * item.len()
    }
}

#[test]
fn methods_of_a_value() {
    assert_eq!(Toolbox::builder().tools(Shop { price: 2 }).build().unwrap().specs().len(), 1);
}
