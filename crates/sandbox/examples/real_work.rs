//! Work as it comes from people: tables, figures, formulas, office files, compiled programs, pipelines. Each task runs in
//! the sandbox, and what comes back is checked. A task whose language or packages this host lacks is skipped loudly.
//!
//! `cargo run -p toolpost-sandbox --example real_work -- [--programs DIRECTORY]… [--keep DIRECTORY] [TASK…]`
//!
//! `--programs` names directories in which programs are looked up first, for example the `bin` of a virtual environment.
//! `--keep` is where files that came back are copied to.

#![expect(clippy::print_stdout, reason = "an example says what it did")]

use std::path::PathBuf;
use std::time::Duration;

use toolpost_runtimes::Profile;
use toolpost_sandbox::{
    Build, Cancel, Error, Language, Limits, Outcome, Program, SYSTEM_SEARCH_PATH, Sandbox, Source,
};

type Failure = Box<dyn std::error::Error>;

/// The expectation of a task.
struct Task {
    name: &'static str,
    language: Language,
    /// Modules of Python that it imports.
    modules: &'static [&'static str],
    code: &'static str,
    /// Looks at what came back, and says in a line what it is.
    check: fn(&Outcome) -> Result<String, Failure>,
}

const SALES: &str = "date,region,units,price\n2026-01-03,north,10,2.5\n2026-01-17,south,4,3.0\n2026-02-02,north,7,2.5\n\
                     2026-02-20,west,12,1.5\n2026-03-09,south,9,3.0\n2026-03-30,west,3,1.5\n";

const TASKS: [Task; 8] = [
    Task {
        name: "table-and-figure",
        language: Language::Python,
        modules: &["pandas", "matplotlib"],
        code: r#"
import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd

sales = pd.read_csv("sales.csv", parse_dates=["date"])
sales["revenue"] = sales.units * sales.price
by_region = sales.groupby("region").revenue.sum().sort_values(ascending=False)
by_month = sales.groupby(sales.date.dt.strftime("%Y-%m")).revenue.sum()
figure, axes = plt.subplots(figsize=(6, 3))
by_month.plot.bar(ax=axes, title="Revenue by month")
figure.tight_layout()
figure.savefig("revenue.png", dpi=120)
{"best": by_region.index[0], "total": float(by_region.sum()), "months": by_month.to_dict()}
"#,
        check: |outcome| {
            let value = value(outcome)?;
            expect(
                value["best"] == "north" && value["total"] == 104.0,
                "the best region and the total",
                value,
            )?;
            let picture = file(outcome, "revenue.png")?;
            expect(picture.starts_with(b"\x89PNG\r\n\x1a\n") && picture.len() > 5000, "a figure", "no PNG")?;
            Ok(format!("north sells most, {} bytes of PNG", picture.len()))
        },
    },
    Task {
        name: "formulas",
        language: Language::Python,
        modules: &["sympy"],
        code: r#"
from sympy import Eq, Function, dsolve, integrate, oo, exp, pi, solve, sqrt, symbols
x, y = symbols("x y")
f = Function("f")
system = solve([Eq(x**2 + y**2, 25), Eq(x - y, 1)], [x, y])
area = integrate(exp(-x**2), (x, -oo, oo))
equation = dsolve(f(x).diff(x) - 2 * f(x), f(x))
{"system": sorted([int(a), int(b)] for a, b in system), "area": str(area), "equation": str(equation.rhs),
 "exact": area == sqrt(pi)}
"#,
        check: |outcome| {
            let value = value(outcome)?;
            let system = serde_json::json!([[-3, -4], [4, 3]]);
            expect(value["system"] == system && value["exact"] == true, "the solutions", value)?;
            expect(value["equation"] == "C1*exp(2*x)", "the function", value)?;
            Ok(format!("the area is {}", value["area"]))
        },
    },
    Task {
        name: "office-file",
        language: Language::Python,
        modules: &["pandas", "openpyxl"],
        code: r#"
import pandas as pd
# The office file is made first; then it is what somebody has sent.
with pd.ExcelWriter("book.xlsx", engine="openpyxl") as book:
    pd.read_csv("sales.csv").to_excel(book, sheet_name="Sales", index=False)
    pd.DataFrame({"note": ["not this one"]}).to_excel(book, sheet_name="Notes", index=False)
sheets = pd.read_excel("book.xlsx", sheet_name=None)
for name, sheet in sheets.items():
    sheet.to_csv(f"table-{name.lower()}.csv", index=False)
{name: list(sheet.shape) for name, sheet in sheets.items()}
"#,
        check: |outcome| {
            let value = value(outcome)?;
            expect(value["Sales"] == serde_json::json!([6, 4]), "two sheets", value)?;
            let table = String::from_utf8(file(outcome, "table-sales.csv")?)?;
            expect(
                table.lines().count() == 7 && table.starts_with("date,region,units,price"),
                "a table",
                &table,
            )?;
            Ok("a book of two sheets became two tables".into())
        },
    },
    Task {
        name: "regression",
        language: Language::Python,
        modules: &["numpy", "sklearn", "statsmodels"],
        code: r#"
import numpy as np
import statsmodels.api as sm
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score
from sklearn.model_selection import train_test_split

random = np.random.default_rng(7)
x = random.uniform(-3, 3, size=(500, 2))
y = 1.5 + 2.0 * x[:, 0] - 0.7 * x[:, 1] + random.normal(0, 0.3, 500)
train_x, test_x, train_y, test_y = train_test_split(x, y, random_state=1)
model = LinearRegression().fit(train_x, train_y)
fit = sm.OLS(y, sm.add_constant(x)).fit()
{"coefficients": [round(float(c), 2) for c in model.coef_], "intercept": round(float(model.intercept_), 2),
 "score": float(r2_score(test_y, model.predict(test_x))), "p": float(fit.pvalues.max())}
"#,
        check: |outcome| {
            let value = value(outcome)?;
            let near = |value: &serde_json::Value, goal: f64| {
                value.as_f64().is_some_and(|found| (found - goal).abs() < 0.1)
            };
            let coefficients = &value["coefficients"];
            expect(near(&coefficients[0], 2.0) && near(&coefficients[1], -0.7), "the coefficients", value)?;
            expect(
                value["score"].as_f64() > Some(0.98) && value["p"].as_f64() < Some(1e-6),
                "a good fit",
                value,
            )?;
            Ok(format!("coefficients {coefficients}"))
        },
    },
    Task {
        name: "rust",
        language: Language::Rust,
        modules: &[],
        code: r#"
use std::collections::BTreeMap;
fn main() {
    let mut revenue: BTreeMap<String, f64> = BTreeMap::new();
    let text = std::fs::read_to_string("sales.csv").expect("the table");
    for line in text.lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let amount = cells[2].parse::<f64>().unwrap() * cells[3].parse::<f64>().unwrap();
        *revenue.entry(cells[1].to_owned()).or_default() += amount;
    }
    println!("::result {{\"north\": {}}}", revenue["north"]);
}
"#,
        check: north,
    },
    Task {
        name: "go",
        language: Language::Go,
        modules: &[],
        code: r#"
package main

import (
	"encoding/csv"
	"fmt"
	"os"
	"strconv"
	"sync"
)

func main() {
	file, err := os.Open("sales.csv")
	if err != nil {
		panic(err)
	}
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil {
		panic(err)
	}
	sums := map[string]float64{}
	var lock sync.Mutex
	var group sync.WaitGroup
	for _, row := range rows[1:] {
		group.Add(1)
		go func(row []string) {
			defer group.Done()
			units, _ := strconv.ParseFloat(row[2], 64)
			price, _ := strconv.ParseFloat(row[3], 64)
			lock.Lock()
			sums[row[1]] += units * price
			lock.Unlock()
		}(row)
	}
	group.Wait()
	fmt.Printf("::result {\"north\": %g}\n", sums["north"])
}
"#,
        check: north,
    },
    Task {
        name: "c",
        language: Language::C,
        modules: &[],
        code: r#"
#include <stdio.h>
#include <string.h>
int main(void) {
    FILE *file = fopen("sales.csv", "r");
    char line[256], region[32];
    double units, price, north = 0;
    if (!file) { perror("sales.csv"); return 1; }
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "%*[^,],%31[^,],%lf,%lf", region, &units, &price) == 3 && !strcmp(region, "north"))
            north += units * price;
    fclose(file);
    printf("::result {\"north\": %g}\n", north);
}
"#,
        check: north,
    },
    Task {
        name: "pipeline",
        language: Language::Bash,
        modules: &[],
        code: r#"
set -euo pipefail
tail -n +2 sales.csv | awk -F, '{ sum[$2] += $3 * $4 } END { for (region in sum) print sum[region], region }' \
  | sort -rn | tee ranking.txt | head -n 1 | { read -r amount region; echo "::result {\"$region\": $amount}"; }
"#,
        check: |outcome| {
            let ranking = String::from_utf8(file(outcome, "ranking.txt")?)?;
            expect(ranking.lines().count() == 3, "three regions", &ranking)?;
            north(outcome)
        },
    },
];

fn value(outcome: &Outcome) -> Result<&serde_json::Value, Failure> {
    outcome.value.as_ref().ok_or_else(|| format!("no value came back\n{}", outcome.stderr.text()).into())
}

fn file(outcome: &Outcome, name: &str) -> Result<Vec<u8>, Failure> {
    let artifact = outcome.artifacts.iter().find(|artifact| artifact.path == name);
    Ok(artifact.ok_or_else(|| format!("no file `{name}` came back"))?.read()?)
}

fn expect(good: bool, what: &str, found: impl std::fmt::Display) -> Result<(), Failure> {
    if good { Ok(()) } else { Err(format!("expected {what}, found {found}").into()) }
}

fn north(outcome: &Outcome) -> Result<String, Failure> {
    let value = value(outcome)?;
    expect(value["north"] == 42.5, "42.5 for the north", value)?;
    Ok("42.5 for the north".into())
}

/// The reason why a task cannot run here, if it cannot.
fn lacks(task: &Task, sandbox: &Sandbox) -> Result<Option<String>, Failure> {
    if task.modules.is_empty() {
        return Ok(None);
    }
    let mut profile = Profile::named("data")?;
    profile.packages.retain(|package| task.modules.contains(&package.module.as_str()));
    let missing = match profile.missing(sandbox) {
        Err(Error::LanguageMissing { .. }) => return Ok(Some("Python is not installed".into())),
        other => other?,
    };
    let names: Vec<&str> = missing.iter().map(|package| package.requirement.as_str()).collect();
    Ok((!names.is_empty()).then(|| format!("this Python lacks {}", names.join(", "))))
}

fn run(task: &Task, sandbox: &Sandbox, keep: Option<&PathBuf>) -> Result<Result<String, String>, Failure> {
    if let Some(reason) = lacks(task, sandbox)? {
        return Ok(Err(reason));
    }
    let program = Program::code(task.language, task.code);
    let cancel = Cancel::new();
    let program = match sandbox.build(&program, &cancel) {
        Err(Error::LanguageMissing { .. }) => return Ok(Err(format!("{} is not installed", task.language))),
        Ok(Build::Failed(outcome)) => return Err(outcome.stderr.text().into()),
        Ok(Build::Ready { program, notes }) => {
            if !notes.is_empty() {
                println!("     {}: {}", task.name, notes.join("; "));
            }
            program
        }
        Ok(_) => program,
        Err(error) => return Err(error.into()),
    };
    let outcome = sandbox.run(&program, &cancel, &mut |_| {})?;
    if !outcome.verdict.is_ok() {
        return Err(format!("{:?}\n{}", outcome.verdict, outcome.stderr.text()).into());
    }
    if let Some(directory) = keep {
        outcome.export(directory)?;
    }
    let said = (task.check)(&outcome)?;
    Ok(Ok(format!("{said} ({} ms)", outcome.usage.wall.as_millis())))
}

fn main() -> Result<(), Failure> {
    let (mut programs, mut keep, mut wanted) = (Vec::new(), None, Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--programs" => {
                programs.push(std::path::absolute(arguments.next().ok_or("--programs needs a directory")?)?);
            }
            "--keep" => keep = Some(PathBuf::from(arguments.next().ok_or("--keep needs a directory")?)),
            name if TASKS.iter().any(|task| task.name == name) => wanted.push(argument),
            name => return Err(format!("unknown task `{name}`").into()),
        }
    }
    programs.extend(SYSTEM_SEARCH_PATH.split(':').map(PathBuf::from));
    let sandbox = Sandbox::new()
        .search_path(std::env::join_paths(programs)?)
        .file("sales.csv", Source::Bytes(SALES.into()))
        // Where matplotlib keeps its list of fonts; else that would be among the files that come back.
        .env("MPLCONFIGDIR", "/tmp/matplotlib")
        .limits(Limits::default().with_wall(Duration::from_mins(3)).with_memory(1 << 30));
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for task in TASKS.iter().filter(|task| wanted.is_empty() || wanted.iter().any(|name| name == task.name)) {
        match run(task, &sandbox, keep.as_ref()) {
            Ok(Ok(said)) => {
                passed += 1;
                println!("ok   {}: {said}", task.name);
            }
            Ok(Err(reason)) => {
                skipped += 1;
                println!("SKIP {}: {reason}", task.name);
            }
            Err(error) => {
                failed += 1;
                println!("FAIL {}: {error}", task.name);
            }
        }
    }
    println!("real work: {passed} passed, {failed} failed, {skipped} skipped");
    if failed > 0 { Err("a task failed".into()) } else { Ok(()) }
}
