// Package writers writes the records of a run: metrics.jsonl and timing.jsonl, TensorBoard
// event files, run.log, and the status line on a terminal. Each is a small type that takes
// plain numbers and does not depend on the trainer.
//
// Results of the computation (metrics.jsonl) are separate from times (timing.jsonl), so that
// cmp can compare two runs of one config. Every line goes to the operating system at once,
// in one write: a killed run loses at most a torn last line, which [TruncateAfter] removes
// on resume.
package writers
