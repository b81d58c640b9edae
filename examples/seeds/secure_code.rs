//! Code in a sandbox, beside `secure_code.py`.
#![expect(clippy::print_stdout, reason = "a program with a terminal")]

use toolpost::sandbox::{Cancel, Error, Language, Level, Program, Sandbox};

fn main() -> Result<(), Error> {
    let program = Program::code(Language::Python, "print('Hello from sandbox!')");
    let result = Sandbox::new().level(Level::Standard).run(&program, &Cancel::new(), &mut |_| {})?;
    println!("Output: {}", result.stdout.text());
    println!("Execution time: {:?}", result.usage.wall);
    Ok(())
}
