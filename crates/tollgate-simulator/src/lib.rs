//! Workloads and a queueing model of a server, in virtual time, to try out Tollgate's limits.
//!
//! A [`Workload`] says when calls arrive, a [`Server`] how long they take. A [`Simulation`] puts an
//! [`Admission`] between them: a real limit of Tollgate, on a manual clock. A [`Client`] has real
//! breakers and retry policies of its own. Minutes of traffic take a fraction of a second, and the
//! same input with the same seed gives the same [`Report`], byte by byte.
//!
//! # Examples
//!
//! Twice the load that a server can handle, without a limit and with an adaptive one:
//!
//! ```
//! use std::time::Duration;
//! use tollgate::adaptive::law::ProbingGradient;
//! use tollgate_simulator::{Server, ServiceTime, Simulation, Workload, limited_by};
//!
//! let service = ServiceTime::Exponential(Duration::from_millis(20));
//! let simulation = Simulation::new(
//!     Workload::new().poisson(2000.0, Duration::from_secs(10)),
//!     Server::new(20, service), // 1000 a second
//! );
//! let unlimited = simulation.run_unlimited(1);
//! let law = ProbingGradient::builder().build()?;
//! let adaptive = simulation.run(1, |clock| vec![limited_by(law, clock)]);
//! assert!(unlimited.goodput(0..10) < 0.1);
//! assert!(adaptive.goodput(0..10) > 0.9);
//! # Ok::<(), tollgate::adaptive::law::LawError>(())
//! ```

mod admission;
mod client;
mod numbered;
mod report;
mod run;
mod server;
mod simulation;
mod workload;

pub use admission::{Admission, Ending, FixedLimit, limited_by};
pub use client::Client;
pub use report::{Moment, Report, Second};
pub use server::{Server, ServiceTime};
pub use simulation::Simulation;
pub use workload::Workload;
