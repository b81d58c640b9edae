//! Methods as tools.

use toolpost::{ToolError, Toolbox, tools};

struct Shop;

#[tools(category = "shop", group = "shop.orders")]
impl Shop {
    /// Order something.
    #[tool(destructive, approval = "ask")]
    async fn order(&self, item: String) -> Result<String, ToolError> {
        Ok(self.price(&item).to_string())
    }

    fn price(&self, item: &str) -> usize {
        item.len()
    }
}

#[test]
fn methods_of_a_value() {
    assert_eq!(Toolbox::builder().tools(Shop).build().unwrap().specs().len(), 1);
}
