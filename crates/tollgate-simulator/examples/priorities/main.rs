//! Prints which calls the queues of a concurrency limit serve under overload: the table of
//! docs/adaptive.md.

mod queue;

use queue::{CLASSES, Queueing, served};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("| queue | load | critical | normal | batch | goodput |");
    println!("|---|---|---|---|---|---|");
    for (name, queueing) in
        [("first come, first served", Queueing::Equal), ("by priority", Queueing::ByPriority)]
    {
        for load in [1.2, 2.0, 4.0] {
            let report = served(queueing, load, 1)?;
            let [critical, normal, batch] = CLASSES.map(|class| report.share(class.0));
            let goodput = report.goodput();
            println!(
                "| {name} | {load} x | {critical:.2} | {normal:.2} | {batch:.2} | {goodput:.2} |"
            );
        }
    }
    Ok(())
}
