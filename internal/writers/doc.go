// Package writers writes what a run tells about itself: metrics.jsonl and
// timing.jsonl, TensorBoard event files, run.log, and the status line on a
// terminal. Each is one small type that is handed plain numbers; none of them
// knows the trainer.
//
// What the computation determines (metrics.jsonl) is kept apart from what the
// clock says (timing.jsonl), so that two runs of one config can be compared
// with cmp. Every line reaches the operating system as soon as it is written,
// in one write: a killed run loses nothing but a torn last line, which
// [TruncateAfter] removes on resume.
package writers
