//! `afterimage`: how much of a model's training data can be rebuilt from what is shared?

mod args;
mod commands;
mod progress;
mod provenance;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Whoever reads what is printed may have read enough: a closed pipe ends the program, and is no panic to tell of.
fn end_quietly_on_a_closed_pipe() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let message = panic.payload_as_str().unwrap_or_default();
        if message.starts_with("failed printing to std") && message.contains("Broken pipe") {
            // What a shell says of a program that a closed pipe ended.
            std::process::exit(141);
        }
        usual(panic);
    }));
}

fn main() -> ExitCode {
    end_quietly_on_a_closed_pipe();
    let args = Args::parse();
    let done = match args.command {
        Command::Demo(args) => commands::demo::run(&args),
        Command::Init(args) => commands::init::run(&args),
        Command::Check(args) => commands::check::run(&args),
        Command::Audit(args) => commands::audit::run(&args),
        Command::Run(args) => commands::run::run(&args),
        Command::Train(args) => commands::train::run(&args),
        Command::Sweep(args) => commands::sweep::run(&args),
        Command::Distill(args) => commands::distill::run(&args),
        Command::Onion(args) => commands::onion::run(&args),
        Command::Policy(args) => commands::policy::run(&args),
        Command::Exposure(args) => commands::exposure::run(&args),
        Command::Attack(args) => commands::attack::run(&args),
        Command::Score(args) => commands::score::run(&args),
        Command::Report(args) => commands::files::report(&args),
        Command::Defences(args) => commands::defences::run(&args),
        Command::Purge(args) => commands::files::purge(&args.runs),
        Command::List => commands::cards::list(),
        Command::Explain(args) => match &args.name {
            Some(name) => commands::cards::explain(name),
            None => commands::cards::list(),
        },
        Command::Completions { shell } => commands::packaging::completions(shell),
        Command::Man { folder } => commands::packaging::man(&folder),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
