//! lockstep-reports.
