//! The client's side: to call a server no faster than it allows.

mod counts;
mod family;
mod field;
mod grpc;
mod lane;
mod lanes;
mod learned;
mod pace;
mod retry;
mod spend;
mod time;
mod turn;

pub use counts::PaceCounts;
pub use learned::{Learned, LearnedPolicy, Reader, Refusal, RetryWhen, Unit};
pub use pace::{
    Pace, PaceAnswer, PaceAnswerFuture, PaceAnswerLayer, PaceBuildError, PaceBuilder, PaceError,
    PaceFuture, PaceLayer, Unsent,
};
pub use retry::{
    CloneBody, CloneRequest, Retry, RetryBudget, RetryBudgetBuilder, RetryBuildError, RetryBuilder,
    RetryFuture, RetryLayer,
};
pub use spend::Spend;
