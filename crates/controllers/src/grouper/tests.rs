//! Tables: owner and pod in, plan out.
