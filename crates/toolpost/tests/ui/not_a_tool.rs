async fn plain() {}

fn main() {
    let _ = toolpost::Toolbox::builder().tool(plain);
}
